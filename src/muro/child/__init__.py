"""What every child process of muro shares: how it boots, what it is given, how it ends with its parent.

Knows nothing of engines or of the protocol; the other side of each descriptor is `launch.spawn`.
"""
