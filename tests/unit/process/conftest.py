"""The sender's tests send tracked frames, so pyzmq's collector thread must be there before a leak is looked for."""

from tests.unit.transport.conftest import collector_thread_is_there

__all__ = ["collector_thread_is_there"]
