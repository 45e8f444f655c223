"""Built-in engines."""
