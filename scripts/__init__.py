"""The project's own tools, run by the Makefile; nothing here is shipped."""
