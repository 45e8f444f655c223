"""Messages <-> frames, in both directions and for both roles.

What cannot be carried raises LocalProtocolError at its sender, what cannot be read RemoteProtocolError at its
receiver, whatever the bytes are; neither leaves a trace. An encoder or decoder keeps state while it works: it
belongs to one thread. Sockets, buffers' lives and the choice of a layout are their owners' business.
"""

from muro.wire.codec.outputs import DEAD, Marker, OutputDecoder, OutputEncoder
from muro.wire.codec.requests import Request, RequestDecoder, RequestEncoder

__all__ = ["DEAD", "Marker", "OutputDecoder", "OutputEncoder", "Request", "RequestDecoder", "RequestEncoder"]
