"""A recording as people read it: a line for each message, or all its fields, or JSON.

Nothing that a peer said leaves here but as printable characters: control characters, which could steer a terminal,
are written as escapes.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from muro.probe.reading import Kind, Message
from muro.probe.recording import Direction, Header, Kept, KeptFrame, Record, total
from muro.wire.arrays import Tensor
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.handshake import Hello, Init, Ready, ReadyResponse
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason
from muro.wire.request import EngineCoreRequest, SamplingParams

DEFAULT_MAX_TOKENS: Final = SamplingParams().max_tokens
SHOWN_TOKENS: Final = 8
SHOWN_BYTES: Final = 48
SHOWN_TEXT: Final = 200

_ARROWS: Final = {Direction.TO_ENGINE: "->", Direction.TO_FRONTEND: "<-", Direction.EVENT: "--"}


class Filter(msgspec.Struct, frozen=True):
    """Which messages are shown; empty lets all through.

    `request` is an id, or the beginning of one up to a hyphen: front-ends append something to what their users see, and
    muro's shows them ids that begin with the kind of the answer.
    """

    request: str = ""
    kinds: frozenset[Kind] = frozenset()

    def wants(self, message: Message) -> bool:
        """Whether a message is shown."""
        if self.kinds and message.kind not in self.kinds:
            return False
        return not self.request or any(map(self.is_meant, message.ids))

    def is_meant(self, request_id: str) -> bool:
        """Whether it is the request that is asked for."""
        if not self.request:
            return True
        asked = self.request, self.request.removeprefix("chatcmpl-").removeprefix("cmpl-")
        return any(request_id == one or request_id.startswith(f"{one}-") for one in asked)


def heading(header: Header) -> str:
    """The first line: when and where the recording was made."""
    when = _wall(header.started)
    kept = "with prompts" if header.prompts else "without prompts"
    return printable(f"recorded {when} between {header.to} and engines at {header.listen}, {kept}")


def lines(messages: Iterable[Message], wanted: Filter, *, full: bool = False) -> Iterator[str]:
    """The messages that are wanted, a line each; `full`: and a line for each of their fields."""
    for message in messages:
        if wanted.wants(message):
            yield printable(_line(message, wanted))
            if full:
                yield from map(printable, _details(message))


def json_lines(messages: Iterable[Message], wanted: Filter, header: Header, *, full: bool = False) -> Iterator[str]:
    """The messages that are wanted, a JSON object each; in ASCII."""
    for message in messages:
        if wanted.wants(message):
            yield json.dumps(_object(message, wanted, header, full=full))


def printable(text: str) -> str:
    """The text with everything that is not printable (control and direction characters too) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def peer_name(peer: bytes) -> str:
    """An engine's identity in short: its rank, or the identity in hex if it is none."""
    return f"E{int.from_bytes(peer, 'little')}" if len(peer) == 2 else f"x{peer[:8].hex()}"


def _line(message: Message, wanted: Filter) -> str:
    record = message.record
    client = "" if record.client is None else f"c{record.client}"
    start = f"{record.at:12.6f} {client:>3} {_ARROWS[record.direction]} {peer_name(record.peer):<4}"
    words = f"{start} {record.role.value:<9} {message.kind.value:<9} {_summary(message, wanted)}"
    if record.withheld and message.value is not None and record.withheld != ["new_token_ids"]:  # as in all outputs
        words += f"  (withheld: {', '.join(record.withheld)})"
    return words.rstrip()


def _summary(message: Message, wanted: Filter) -> str:
    record = message.record
    if message.kind is Kind.EVENT:
        return record.note
    if message.fault:
        return f"unreadable: {_short(message.fault)}; {_frames(record, SHOWN_BYTES)}"
    if message.value is None:
        return "" if message.kind is not Kind.UNKNOWN else _frames(record, SHOWN_BYTES)
    if isinstance(message.value, EngineCoreOutputs):
        return _outputs(message, message.value, wanted)
    if isinstance(message.value, EngineCoreRequest):
        return _request(message, message.value)
    return _SUMMARIES[type(message.value)](message.value)


def _request(message: Message, request: EngineCoreRequest) -> str:
    words = [request.request_id, _prompt(message, request)]
    if request.mm_features:
        words.append(f"{len(request.mm_features)} {request.mm_features[0].modality}")
    params: Any = request.sampling_params or request.pooling_params
    if request.sampling_params is not None and request.sampling_params.max_tokens == DEFAULT_MAX_TOKENS:
        words.append(f"max_tokens={DEFAULT_MAX_TOKENS}")  # the most important one even if it is the default
    if params is not None:
        words += [f"{name}={_plain(value)}" for name, value in _set_fields(params) if _is_short(value)]
    for name in ("current_wave", "priority", "data_parallel_rank", "lora_request", "resumable"):
        if value := getattr(request, name):
            words.append(f"{name}={_plain(value)}")
    words.append(f"[{message.layout} fields, {total(message.record.frames)} bytes]")
    return " ".join(words)


def _prompt(message: Message, request: EngineCoreRequest) -> str:
    if request.prompt_token_ids is None:
        shape = request.prompt_embeds.shape if request.prompt_embeds is not None else []
        return f"prompt of embeddings {shape}"
    return f"prompt {_tokens(request.prompt_token_ids, 'prompt_token_ids' in message.record.withheld)}"


def _tokens(tokens: list[int], withheld: bool) -> str:
    if withheld or not tokens:
        return f"{len(tokens)} tokens"
    shown = " ".join(map(str, tokens[:SHOWN_TOKENS]))
    return f"{len(tokens)} tokens ({shown}{' ...' if len(tokens) > SHOWN_TOKENS else ''})"


def _outputs(message: Message, value: EngineCoreOutputs, wanted: Filter) -> str:
    if (answer := value.utility_output) is not None:
        if answer.failure_message is not None:
            return f"call {answer.call_id} failed: {_short(answer.failure_message)}"
        pair = answer.result
        return f"call {answer.call_id} gave {_short(_plain(pair[1] if isinstance(pair, list) else pair))}"
    words: list[str] = []
    hidden = "new_token_ids" in message.record.withheld
    words += [_output(output, hidden) for output in value.outputs if wanted.is_meant(output.request_id)]
    if value.finished_requests:
        words.append(f"finished: {' '.join(filter(wanted.is_meant, value.finished_requests))}")
    for name in ("wave_complete", "start_wave"):
        if (wave := getattr(value, name)) is not None:
            words.append(f"{name}={wave}")
    if (stats := value.scheduler_stats) is not None:
        words.append(f"running={stats.num_running_reqs} waiting={stats.num_waiting_reqs} kv={stats.kv_cache_usage:.3f}")
    return ", ".join(words)


def _output(output: EngineCoreOutput, hidden: bool) -> str:
    words = f"{output.request_id} +{_tokens(output.new_token_ids, hidden)}"
    if output.new_logprobs is not None:
        words += " logprobs"
    if output.pooling_output is not None:
        words += f" vector {output.pooling_output.shape}"
    if output.finish_reason is not None:
        words += f" {FinishReason(output.finish_reason).name}"
        words += "" if output.stop_reason is None else f" at {_plain(output.stop_reason)}"
    return words if output.error is None else f"{words} ({output.error.code}: {_short(output.error.message)})"


def _init(value: Init) -> str:
    words = f"{len(value.addresses.inputs)} clients: " + " ".join(
        f"{i} {o}" for i, o in zip(value.addresses.inputs, value.addresses.outputs, strict=False)
    )
    if value.addresses.coordinator_input is not None:
        words += f" coordinator {value.addresses.coordinator_input} {value.addresses.coordinator_output}"
    return words if value.muro is None else f"{words} muro {value.muro.version}"


def _response(value: ReadyResponse) -> str:
    names = ("vllm_version", "max_model_len", "num_gpu_blocks", "block_size", "dtype", "data_parallel_size")
    return " ".join(f"{name}={_plain(getattr(value, name))}" for name in names)


def _call(value: UtilityRequest) -> str:
    return f"{value.method}({', '.join(_short(_plain(arg)) for arg in value.args)}) call {value.call_id}"


def _word(value: Hello | Ready) -> str:
    return f"local={value.local} headless={value.headless}".lower()


_SUMMARIES: Final[dict[type[Any], Callable[[Any], str]]] = {
    Hello: _word,
    Ready: _word,
    Init: _init,
    ReadyResponse: _response,
    AbortRequest: lambda value: " ".join(value.request_ids),
    StartDPWave: lambda value: f"wave {value.wave} exclude {_plain(value.exclude)}",
    UtilityRequest: _call,
}


def _details(message: Message) -> Iterator[str]:
    if message.value is None:
        if message.kind in (Kind.UNKNOWN, Kind.DEAD) or message.fault:
            yield f"{'':17}{_frames(message.record, None)}"
        return
    for name, value in _set_fields(message.value):
        yield f"{'':17}{name} = {_plain(value)}"


def _set_fields(value: msgspec.Struct) -> list[tuple[str, Any]]:
    """The fields that differ from their defaults."""
    found = []
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        default = None if field.default is msgspec.NODEFAULT else field.default
        if field.required or not (item is None or item == default or (isinstance(item, list | dict) and not item)):
            found.append((field.name, item))
    return found


def _object(message: Message, wanted: Filter, header: Header, *, full: bool) -> dict[str, Any]:
    record = message.record
    found: dict[str, Any] = {
        "at": round(record.at, 6),
        "time": _wall(header.started + record.at),
        "direction": record.direction.value,
        "role": record.role.value,
        "engine": peer_name(record.peer),
        "link": record.link,
        "client": record.client,
        "kind": message.kind.value,
        "ids": sorted(message.ids),
        "summary": _summary(message, wanted),
        "bytes": [frame.size for frame in record.frames],
        "withheld": record.withheld,
        "fault": message.fault or None,
    }
    if full:
        found["fields"] = None if message.value is None else _builtins(message.value)
        if message.value is None:
            found["frames"] = [f"{frame.kept.value} {frame.data.hex()}" for frame in record.frames]
    return found


def _frames(record: Record, most: int | None) -> str:
    return " | ".join(_frame(frame, most) for frame in record.frames)


def _frame(frame: KeptFrame, most: int | None) -> str:
    name = {Kept.HASHED: "hash ", Kept.WITHHELD: "withheld ", Kept.CUT: "cut "}.get(frame.kept, "")
    shown = frame.data if most is None else frame.data[:most]
    return f"{frame.size} bytes: {name}{shown.hex()}{' ...' if len(shown) < len(frame.data) else ''}"


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float | str) and len(str(value)) <= 40


def _plain(value: Any) -> str:
    return json.dumps(_builtins(value), ensure_ascii=False)


def _builtins(value: Any) -> Any:
    """Values that JSON knows; structs by the names of their set fields, bytes in hex."""
    if isinstance(value, msgspec.Struct):
        return {name: _builtins(item) for name, item in _set_fields(value)}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(_builtins(key)): _builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_builtins(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Tensor):
        return {"dtype": value.dtype, "shape": value.shape, "data": bytes(value.data).hex()}
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data": bytes(value.data).hex()}
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]} ..."


def _wall(seconds: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds} s"
