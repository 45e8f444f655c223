"""Measuring muro on the machine at hand; what `muro bench` runs. Nothing here is used when serving."""
