"""The parent's side of an engine's life: bring it up, watch it, take it down.

Names what runs in a child as a string and imports none of it. What death means for requests is decided by
the clients.
"""
