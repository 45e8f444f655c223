"""Doors of several client processes: at addresses that each of them knows beforehand."""

from __future__ import annotations

import pytest

from muro.clients.doors import Doors, Shared
from muro.config import ConnectConfig
from muro.errors import ConfigError
from muro.ids import EngineRank
from muro.transport.endpoint import EndpointDirectory


def test_a_client_that_is_alone_is_client_0() -> None:
    doors = Doors.open(ConnectConfig())
    try:
        assert doors.client == 0 and len(doors.addresses.inputs) == len(doors.addresses.outputs) == 1
        assert doors.addresses_with(doors.inputs, EngineRank(1), 3) == doors.addresses
    finally:
        doors.close()


def test_whoever_starts_the_engines_is_the_last_client() -> None:
    with EndpointDirectory() as directory:
        shared = Shared(directory.path, 2)
        doors = Doors.open(ConnectConfig(), shared)
        try:
            named = doors.addresses
            assert doors.client == 2
            assert [address.rpartition("/")[2] for address in named.inputs] == ["input-0", "input-1", "input-2"]
            assert [address.rpartition("/")[2] for address in named.outputs] == ["output-0", "output-1", "output-2"]
            assert shared.addresses().inputs == named.inputs[:2]
            successor = doors.addresses_with(doors.inputs, EngineRank(7), 3)
            assert successor.inputs[:2] == shared.addresses(EngineRank(7), 3).inputs
            assert successor.inputs[2] == named.inputs[2] and successor.outputs == named.outputs
            assert not set(successor.inputs[:2]) & set(named.inputs)
        finally:
            doors.close()
        assert EndpointDirectory.attach(directory.path).path == directory.path, "the directory is not theirs to remove"


def test_the_longest_names_fit() -> None:
    with EndpointDirectory() as directory:
        assert len(Shared(directory.path, 64).addresses(EngineRank(65535), 9999).inputs) == 64


def test_engines_elsewhere_have_one_server() -> None:
    with EndpointDirectory() as directory, pytest.raises(ConfigError, match="all started here"):
        Doors.open(ConnectConfig(host="127.0.0.1"), Shared(directory.path, 2))
