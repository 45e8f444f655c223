"""What is fuzzed: a function of some frames for each door that bytes come in by, and messages to begin with.

A target returns or raises `AssertionError`, whatever the frames are; what its decoder may raise, it catches itself.
Frames travel through a fuzzer as one string: each with its length, two bytes, before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError, RequestError
from muro.ids import EngineRank
from muro.server.schemas.chat import ChatCompletionRequest
from muro.server.schemas.completions import CompletionRequest
from muro.server.schemas.request import GenerationOptions, decode_request, sampling_params
from muro.wire import coordination
from muro.wire.codec import Marker, OutputDecoder, OutputEncoder, Request, RequestDecoder, RequestEncoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.failure import FailureRecord
from muro.wire.frames import identity_of
from muro.wire.handshake import (
    Addresses,
    EngineHandshake,
    Expected,
    FrontendHandshake,
    Init,
    decode_init,
    decode_ready_response,
)
from muro.wire.progress import unpack
from muro.wire.releases import LAYOUTS, NEWEST
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.vectors import vectors

Frames = Sequence[bytes]
MAX_FRAMES = 16
_VECTORS = vectors()


class Target(msgspec.Struct, frozen=True):
    """One door: `run` must survive any frames; `seeds` are messages that are well formed."""

    name: str
    run: Callable[[Frames], None]
    seeds: list[Frames]


def pack(frames: Frames) -> bytes:
    """Frames as one string."""
    return b"".join(len(frame).to_bytes(2, "little") + frame for frame in frames if len(frame) < 1 << 16)


def unpack_frames(data: bytes) -> list[bytes]:
    """Some frames from any string; `pack` the other way round for strings that it made."""
    frames: list[bytes] = []
    while len(data) >= 2 and len(frames) < MAX_FRAMES:
        size = int.from_bytes(data[:2], "little")
        frames.append(data[2 : 2 + size])
        data = data[2 + size :]
    return frames


def _recorded(*messages: str) -> list[Frames]:
    return [vector.bytes for vector in _VECTORS if vector.message in messages]


# -- what a front-end sends to an engine --

_requests = RequestDecoder()
_sender = RequestEncoder()


def requests(frames: Frames) -> None:
    """A message is read, or refused with RemoteProtocolError; what was read can be sent on and is the same again."""
    known, call = _requests.salvage(frames), _requests.salvage_call(frames)
    assert known is None or (isinstance(known[0], str) and isinstance(known[1], int))
    assert call is None or isinstance(call[2], str)
    assert _requests.add_length(frames) >= 0
    heading = _requests.heading(frames)
    assert heading is None or heading[1] >= 0
    try:
        message = _requests.decode(frames)
    except RemoteProtocolError:
        return
    with contextlib.suppress(LocalProtocolError):
        sent = _encoded(_requests.decode(_encoded(message)))  # by now in our own layout
        again = _encoded(_requests.decode(sent))
        # Each reading of a call takes an adapter's arguments for those of an older layout if they look so.
        assert sent == again or isinstance(message, UtilityRequest), "what is sent on changes"


def _encoded(message: Request) -> list[bytes]:
    match message:
        case EngineCoreRequest():
            frames = _sender.add(message)
        case UtilityRequest():
            frames = _sender.call(message)
        case AbortRequest():
            frames = _sender.abort(message.request_ids)
        case StartDPWave():
            frames = _sender.start_wave(message)
    return [bytes(frame) for frame in frames]


# -- what an engine sends to a front-end --


_outputs = [OutputDecoder(layout) for layout in LAYOUTS.values()]
_engine = OutputEncoder(NEWEST)
_newest = OutputDecoder(NEWEST)


def outputs(frames: Frames) -> None:
    """The same, for each layout that an engine may write; an answer that is refused still names its requests."""
    for decoder in _outputs:
        try:
            message = decoder.decode(frames)
        except RemoteProtocolError as error:
            ends = decoder.salvage(frames, error)
            assert ends is None or all(o.finish_reason is not None and o.error for o in ends.outputs)
            continue
        if isinstance(message, Marker):
            continue
        with contextlib.suppress(LocalProtocolError):
            sent = [bytes(frame) for frame in _engine.encode(message, bytearray())]
            back = _newest.decode(sent)
            assert not isinstance(back, Marker)
            assert [o.request_id for o in back.outputs] == [o.request_id for o in message.outputs]
            assert [o.new_token_ids for o in back.outputs] == [o.new_token_ids for o in message.outputs]


# -- joining --

_INIT = Init(Addresses(["ipc:///a"], ["ipc:///b"]))


def handshake(frames: Frames) -> None:
    """Whatever is said on the handshake socket, an engine that comes afterwards can join."""
    front = FrontendHandshake({EngineRank(0): Expected(), EngineRank(1): Expected()}, _INIT)
    engine = EngineHandshake(local=True, headless=False)
    identity = identity_of(1)
    for frame in frames:
        for said in ([identity_of(0), frame], list(frames)):
            for take in (front.receive, front.ready_response):
                with contextlib.suppress(RemoteProtocolError):
                    take([*said])
        with contextlib.suppress(RemoteProtocolError, LocalProtocolError):
            EngineHandshake(local=True, headless=False).receive(frame)
    if front.missing().get(EngineRank(1)) == "no HELLO yet":
        [(to, payload)] = front.receive([identity, engine.hello()])
        assert to == identity and engine.receive(payload) == _INIT


# -- single payloads --

_SINGLE: tuple[Callable[[bytes], object], ...] = (
    decode_init,
    decode_ready_response,
    coordination.decode_publication,
    coordination.decode_notice,
    FailureRecord.decode,
    unpack,
)


def payloads(frames: Frames) -> None:
    """INIT, ready response, coordination, failure record, progress page."""
    for frame in frames:
        for read in _SINGLE:
            with contextlib.suppress(RemoteProtocolError):
                read(frame)


# -- HTTP --

_BODIES = [
    b'{"model":"m","prompt":"a","max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"n":2}',
    b'{"prompt":[[1,2],[3]],"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,"seed":7,"stop":["a","b"]}',
    b'{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_completion_tokens":3,"logprobs":null}',
    b'{"messages":[],"stop_token_ids":[1],"ignore_eos":true,"min_tokens":1,"vllm_xargs":{"a":"b"},"user":"u"}',
]
_KINDS: tuple[type[GenerationOptions], ...] = (CompletionRequest, ChatCompletionRequest)


def bodies(frames: Frames) -> None:
    """A body is read, or refused with an error that is the caller's fault."""
    for frame in frames:
        for kind in _KINDS:
            with contextlib.suppress(RequestError):
                sampling_params(decode_request(frame, kind), 9, SamplingParams())


TARGETS = {
    target.name: target
    for target in (
        Target("requests", requests, _recorded("ADD", "ABORT", "UTILITY", "START_DP_WAVE")),
        Target("outputs", outputs, _recorded("EngineCoreOutputs")),
        Target("handshake", handshake, _recorded("HELLO", "READY", "READY_RESPONSE")),
        Target("payloads", payloads, _recorded("INIT", "READY_RESPONSE", "PUBLISH", "FIRST_REQUEST")),
        Target("bodies", bodies, [[body] for body in _BODIES]),
    )
}
