"""Fuzzing: bytes for every decoder that reads what a peer wrote, and long random walks through the state machines.

`make fuzz` runs it all within a fixed time and prints its seed; `python -m fuzz --help` knows the rest. What the
decoders promise is in `targets.py`, the walks are the machines of tests/unit. Not shipped.
"""
