"""How others talk to engines: one pure session, and three thin shells over it (in process, sync, asyncio).

`connect.connect` and `connect.connect_async` make clients; what a client promises stands in `interface`.
"""
