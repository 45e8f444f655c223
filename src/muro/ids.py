"""Distinct types for the identifiers that cross rooms, so that mypy tells them apart.

Imports nothing and does nothing: the byte form of an engine's identity is `wire.frames`' business.
"""

from typing import NewType

RequestId = NewType("RequestId", str)
"""A request as its caller knows it; unique among the caller's live requests."""

WireId = NewType("WireId", str)
"""One attempt of a request, as it travels; never used twice by one client."""

CallId = NewType("CallId", int)
"""One utility call, 0 ... 2**64 - 1; negative values are unsolicited notices."""

EngineRank = NewType("EngineRank", int)
"""Data-parallel rank of an engine, 0 ... 65535."""

ClientIndex = NewType("ClientIndex", int)
"""Position of a front-end process in INIT's address lists."""

Generation = NewType("Generation", int)
"""How often the engine of a rank has been replaced; 0 for the first."""

COORDINATOR = ClientIndex(-1)
"""Destination of an output that goes to the data-parallel coordinator instead of a client."""
