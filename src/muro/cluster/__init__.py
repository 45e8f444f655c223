"""Ranks on the machines of a cluster. Ray places and starts them; `ray_cluster` alone knows it."""
