"""A model on disk: known models, fetching one, preparing a directory that any front-end can use, describing it.

Reads and writes files; loads no weights and computes nothing. Engines and front-ends start from a `ModelDir`.
"""
