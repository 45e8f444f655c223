"""What crosses a process boundary: message types and their bytes. No sockets, no threads, no clocks."""
