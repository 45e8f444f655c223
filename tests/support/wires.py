"""What passes over a wire, and recordings of it, without any wire."""

import io
from collections.abc import Iterable, Sequence

from muro.probe.reading import Message, Reader
from muro.probe.recording import Direction, Header, Kept, KeptFrame, Record, Recorder, Role
from muro.wire.codec import OutputEncoder, RequestEncoder
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses, EngineHandshake, Init, ReadyResponse, encode_init
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs
from muro.wire.request import EngineCoreRequest

TO_ENGINE, TO_FRONTEND = Direction.TO_ENGINE, Direction.TO_FRONTEND
PEER = identity_of(0)
HEADER = Header(started=1_700_000_000.0, listen="tcp://127.0.0.1:1", to="tcp://127.0.0.1:2")
RESPONSE = ReadyResponse(
    max_model_len=128, num_gpu_blocks=0, block_size=16, dp_stats_address=None, dtype="float32",
    vllm_version="0.25.1", world_size=1, data_parallel_size=1,
)  # fmt: skip


def record(
    role: Role,
    direction: Direction,
    *frames: bytes | bytearray | memoryview,
    at: float = 0.0,
    peer: bytes = PEER,
    client: int | None = 0,
    withheld: Sequence[str] = (),
) -> Record:
    """A message of which everything was recorded."""
    kept = [KeptFrame(bytes(frame), len(frame), Kept.WHOLE) for frame in frames]
    return Record(at, direction, role, peer, 0, None if role is Role.HANDSHAKE else client, kept, list(withheld))


def joining(peer: bytes = PEER, clients: int = 1) -> list[Record]:
    """What is said until an engine is ready."""
    engine = EngineHandshake(local=False, headless=True)
    hello = engine.hello()
    init = encode_init(Init(Addresses(["tcp://127.0.0.1:3"] * clients, ["tcp://127.0.0.1:4"] * clients)))
    engine.receive(init)
    return [
        record(Role.HANDSHAKE, TO_FRONTEND, hello, at=0.1, peer=peer),
        record(Role.HANDSHAKE, TO_ENGINE, init, at=0.2, peer=peer),
        *(record(Role.INPUT, TO_FRONTEND, RESPONSE.encode(), at=0.3, peer=peer, client=c) for c in range(clients)),
        record(Role.HANDSHAKE, TO_FRONTEND, engine.ready(), at=0.4, peer=peer),
    ]


def added(request: EngineCoreRequest, at: float = 1.0, **more: object) -> Record:
    """A request on its way."""
    return record(Role.INPUT, TO_ENGINE, *RequestEncoder().add(request), at=at, **more)  # type: ignore[arg-type]


def gave(*outputs: EngineCoreOutput, at: float = 2.0, **more: object) -> Record:
    """News of requests."""
    frames = OutputEncoder().encode(EngineCoreOutputs(outputs=list(outputs)), bytearray())
    return record(Role.OUTPUT, TO_FRONTEND, *frames, at=at, **more)  # type: ignore[arg-type]


def read(records: Iterable[Record]) -> list[Message]:
    """The records, read in their order."""
    return list(map(Reader().read, records))


def recording_of(records: Iterable[Record], header: Header = HEADER) -> bytes:
    """The file that they make."""
    file = io.BytesIO()
    recorder = Recorder(file, 1 << 30)
    recorder.begin(header)
    for one in records:
        recorder.write(one)
    return file.getvalue()
