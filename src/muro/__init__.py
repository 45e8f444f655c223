"""muro: an inference engine in a process of its own."""
