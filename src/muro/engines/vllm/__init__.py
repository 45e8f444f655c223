"""vLLM's own engine behind our wall: its scheduler and its model runner, our process, sockets and life cycle.

`engine.py` is where one is made, `settings.py` makes vLLM's configuration of engine options, `host.py` drives its
`EngineCore` as an engine of the contract, `translate.py` turns requests into its kind and its outputs into ours.
Nothing of vLLM is imported before an engine is made. Known to work with release 0.25.1.
"""
