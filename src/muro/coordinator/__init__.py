"""The data-parallel coordinator: a process of its own that relays load and starts waves."""
