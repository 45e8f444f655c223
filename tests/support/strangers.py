"""Peers that nobody asked for: what a port scanner, a broken program or a fuzzer sends to a listening socket.

`python -m tests.support.strangers KIND ADDRESS COUNT SEED` offers COUNT messages of junk and ends; it gives up waiting
where the other side stops reading, and dials again.
"""

import random
import socket as plain
import subprocess
import sys
from collections.abc import Iterator, Sequence

import msgspec
import zmq

from muro.transport.endpoint import parse_address
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.control import UtilityRequest
from muro.wire.coordination import FirstRequest, ScaleElasticEP, encode
from muro.wire.handshake import EngineHandshake
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from muro.wire.releases import NEWEST
from muro.wire.stats import SchedulerStats
from tests.support.asking import ask
from tests.support.fake_engine import RESPONSE
from tests.support.programs import ROOT, environment

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
"""The first 64 bytes of a ZMTP 3.0 connection."""
PATIENCE_MS = 200
PER_CONNECTION = 5000


def strangers(kind: str, address: str, count: int, seed: int = 1) -> "subprocess.Popen[bytes]":
    """Start a stranger of this kind: "router", "pull" or "xpub", after the socket that it sends to.

    A "visitor" sends to a ROUTER and does not pretend to be engine 0.
    """
    arguments = [sys.executable, "-m", "tests.support.strangers", kind, address, str(count), str(seed)]
    return subprocess.Popen(arguments, cwd=ROOT, env=environment())


def mutated(templates: Sequence[Sequence[bytes]], seed: int) -> Iterator[list[bytes]]:
    """Messages for ever: bytes flipped, cut, doubled and put in, frames left out, swapped and added."""
    chance = random.Random(seed)
    while True:
        frames = [bytearray(frame) for frame in chance.choice(templates)]
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            _mutate(frames, chance)
        yield [bytes(frame) for frame in frames]


def request_templates() -> list[list[bytes]]:
    """What a front-end sends, none of it about a request that a test looks at."""
    encoder = RequestEncoder(NEWEST)
    made = [
        encoder.add(ask("junk", 2, [1, 2, 3], temperature=0.5, seed=3, stop_token_ids=[5])),
        encoder.abort(["junk", "more junk"]),
        encoder.call(UtilityRequest(0, 1 << 63, "no_such_operation", [1, "a", {"b": [None, True, 0.5]}])),
        [b"\x02", msgspec.msgpack.encode([3, None])],
        [b"\x07", b"unknown type"],
    ]
    return [[bytes(frame) for frame in frames] for frames in made]


def output_templates() -> list[list[bytes]]:
    """What an engine sends, none of it for a request that a test looks at."""
    encoder = OutputEncoder(NEWEST)
    messages = [
        EngineCoreOutputs(outputs=[EngineCoreOutput("junk", [1, 2, 3]), EngineCoreOutput("other junk", [4])]),
        EngineCoreOutputs(outputs=[EngineCoreOutput("junk", [], finish_reason=FinishReason.STOP)], timestamp=1.5),
        EngineCoreOutputs(scheduler_stats=SchedulerStats(num_running_reqs=3)),
        EngineCoreOutputs(utility_output=UtilityOutput(1 << 62, None, [None, {"a": [1, 2.5, "b"]}])),
        EngineCoreOutputs(wave_complete=7),
    ]
    return [[bytes(frame) for frame in encoder.encode(message, bytearray())] for message in messages]


def greeting_templates() -> list[list[bytes]]:
    """What an engine says to greet, and when it is ready."""
    handshake = EngineHandshake(local=True, headless=False)
    return [[handshake.hello()], [RESPONSE.encode()], [], [b""], [b"", b""], [b"x"] * 40]


def subscription_templates() -> list[list[bytes]]:
    """What engines and front-ends say to a coordinator's XPUB sockets."""
    notices = [FirstRequest(b"\x01\x00", 3), FirstRequest(None, 0), ScaleElasticEP("SCALE_ELASTIC_EP", 2**40)]
    return [[b"\x01"], [b"\x00"], [b"\x01topic"], [], *[[encode(notice)] for notice in notices]]


TEMPLATES = {
    "pull": (zmq.PUSH, output_templates),
    "xpub": (zmq.XSUB, subscription_templates),
}
OTHER_TEMPLATES = (zmq.DEALER, lambda: greeting_templates() + request_templates())


def half_connections(address: str, chance: random.Random) -> None:
    """Connections that are no ZMTP, or end in the midst of it; and a frame that claims to be enormous."""
    where = parse_address(address)
    ready = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
    enormous = b"\x02" + (1 << 62).to_bytes(8, "big")
    for words in (b"", GREETING[: chance.randrange(64)], chance.randbytes(300), b"GET / HTTP/1.1\r\n\r\n"):
        _say(where.host, where.port, words)
    _say(where.host, where.port, GREETING + chance.randbytes(100))
    _say(where.host, where.port, GREETING + ready + enormous + b"x" * 1000)


def _say(host: str, port: int, words: bytes) -> None:
    with plain.create_connection((host, port), timeout=5) as connection:
        connection.sendall(words)


def _mutate(frames: list[bytearray], chance: random.Random) -> None:
    kind = chance.randrange(9)
    if kind == 0 or not frames:
        frames.insert(chance.randint(0, len(frames)), bytearray(chance.randbytes(chance.choice((0, 1, 8, 300)))))
        return
    place = chance.randrange(len(frames))
    frame = frames[place]
    at = chance.randint(0, len(frame))
    match kind:
        case 1:
            del frames[place]
        case 2:
            frames.append(bytearray(frame))
        case 3:
            del frame[at:]
        case 4:
            frame[at:at] = chance.randbytes(chance.randint(1, 4))
        case 5:
            frame[at : at + 4] = b"\xdd\xff\xff\xff"  # an array of four thousand million
        case 6:
            frame[at:at] = b"\x91" * 2000  # nested beyond reason
        case _:
            for _ in range(min(len(frame), chance.randint(1, 3))):
                frame[chance.randrange(len(frame))] = chance.randrange(256)


def _offer(kind: str, address: str, count: int, seed: int) -> None:
    chance = random.Random(seed)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    own, templates = TEMPLATES.get(kind, OTHER_TEMPLATES)
    messages = mutated(templates(), seed)
    offered = 0
    while offered < count:
        half_connections(address, chance)
        socket = context.socket(own)
        socket.setsockopt(zmq.LINGER, PATIENCE_MS)
        socket.setsockopt(zmq.SNDTIMEO, PATIENCE_MS)
        if own is zmq.DEALER and chance.random() < 0.7:
            names = (
                b"\x00\x00" if kind == "router" else b"visitor",
                b"\x07\x00",
                b"\xff\xff",
                b"stranger",
                chance.randbytes(200),
            )
            socket.setsockopt(zmq.ROUTING_ID, chance.choice(names))
        socket.connect(address)
        try:
            for _ in range(min(PER_CONNECTION, count - offered)):
                offered += 1
                if frames := next(messages):
                    socket.send_multipart(frames)
        except zmq.Again:
            pass
        socket.close()
    context.term()


if __name__ == "__main__":
    _offer(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
