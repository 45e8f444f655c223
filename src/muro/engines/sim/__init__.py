"""The simulator: our scheduler over an executor that only keeps time, and goes wrong when it is told to.

For whoever builds or operates what stands in front of an engine: `muro serve --engine sim` behaves like a server with
a fast device behind it and needs none. `options.py` says what can be set, `executor.py` keeps time and chooses tokens,
`schedule.py` knows which fault is due, `scenario.py` reads faults from a file, `engine.py` puts it all together.
"""
