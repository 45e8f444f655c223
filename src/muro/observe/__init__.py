"""How serving is watched: numbers are written down, never acted upon. Imports nothing but errors and ids."""
