"""Moving frames between processes: the only room that imports zmq.

It knows sockets, descriptors and buffers, and nothing of what the frames mean.
"""
