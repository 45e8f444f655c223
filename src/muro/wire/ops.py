"""vLLM's operations, declared: what a front-end may call on an engine (protocol section 13).

Only listed operations can be called: these, and those that an engine declares itself with `@operation`.
Nothing here calls anything.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from muro.errors import LocalProtocolError, RemoteProtocolError
from muro.wire.request import LoRARequest

R_co = TypeVar("R_co", covariant=True)


class Op(Generic[R_co]):
    """One operation: its name on the wire, the types of its arguments and of its reply, and its first release.

    `required` is how many arguments must be given; the rest may be left out at the end. The reply's type is
    the type parameter, so that `client.call(op)` is typed.
    """

    __slots__ = ("args", "name", "reply", "required", "since")

    def __init__(
        self, name: str, args: tuple[Any, ...] = (), reply: Any = None, *, since: str = "", required: int | None = None
    ) -> None:
        self.name: Final = name
        self.args: Final = args
        self.reply: Final = reply
        self.since: Final = since
        self.required: Final = len(args) if required is None else required

    def __repr__(self) -> str:
        return f"Op({self.name!r})"

    def check_args(self, args: tuple[Any, ...]) -> list[Any]:
        """The arguments, converted to their types. Raises LocalProtocolError that names the wrong one."""
        if not self.required <= len(args) <= len(self.args):
            expected = f"{self.required} to {len(self.args)}" if self.required < len(self.args) else len(self.args)
            raise LocalProtocolError(f"{self.name} takes {expected} arguments, {len(args)} were given")
        checked = []
        for position, (value, kind) in enumerate(zip(args, self.args, strict=False)):
            try:
                checked.append(msgspec.convert(value, kind))
            except msgspec.ValidationError as error:
                raise LocalProtocolError(f"argument {position} of {self.name}: {error}") from error
        return checked

    def check_reply(self, value: Any) -> R_co:
        """An engine's answer, converted to the reply's type. Raises RemoteProtocolError."""
        try:
            reply: R_co = msgspec.convert(value, self.reply)
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"the engine's answer to {self.name}: {error}") from error
        return reply


class KVCacheGroupMetadata(msgspec.Struct):
    """One group of layers that share block tables."""

    group_idx: int
    kind: str
    block_size: int
    sliding_window: int | None = None


Json = dict[str, Any]

RESET_MM_CACHE: Final = Op[None]("reset_mm_cache")
GET_SUPPORTED_TASKS: Final = Op[list[str]]("get_supported_tasks", (), list[str])
IS_SLEEPING: Final = Op[bool]("is_sleeping", (), bool)
SLEEP: Final = Op[None]("sleep", (int, str), required=0)
WAKE_UP: Final = Op[bool | None]("wake_up", (list[str] | None,), bool | None, required=0)
PAUSE_SCHEDULER: Final = Op[None]("pause_scheduler", (str, bool), required=0)
RESUME_SCHEDULER: Final = Op[None]("resume_scheduler")
IS_SCHEDULER_PAUSED: Final = Op[bool]("is_scheduler_paused", (), bool)
RESET_PREFIX_CACHE: Final = Op[bool]("reset_prefix_cache", (bool, bool), bool, required=0)
RESET_ENCODER_CACHE: Final = Op[None]("reset_encoder_cache")
PROFILE: Final = Op[None]("profile", (bool, str | None, int | None, int | None, Json | None), required=0)
ADD_LORA: Final = Op[bool]("add_lora", (LoRARequest,), bool)
REMOVE_LORA: Final = Op[bool]("remove_lora", (int,), bool)
LIST_LORAS: Final = Op[list[int]]("list_loras", (), list[int])
PIN_LORA: Final = Op[bool]("pin_lora", (int,), bool)
COLLECTIVE_RPC: Final = Op[list[Any]](
    "collective_rpc", (str, float | None, list[Any], Json | None), list[Any], required=1
)
EXECUTE_DUMMY_BATCH: Final = Op[None]("execute_dummy_batch")
SAVE_SHARDED_STATE: Final = Op[None]("save_sharded_state", (str, str | None, int | None), required=1)
GET_KV_CACHE_GROUP_METADATA: Final = Op[list[KVCacheGroupMetadata]](
    "get_kv_cache_group_metadata", (), list[KVCacheGroupMetadata]
)
REINITIALIZE_DISTRIBUTED: Final = Op[None]("reinitialize_distributed", (Json,))
EEP_NOTIFICATION: Final = Op[None]("eep_handle_engine_core_notification", (str,))
SET_WEIGHT_VERSION: Final = Op[None]("set_weight_version", (str,), since="0.27")
GET_WEIGHT_VERSION: Final = Op[str]("get_weight_version", (), str, since="0.27")
COMMIT_PREPARED_ELASTIC_EP: Final = Op[None]("commit_prepared_elastic_ep", since="0.27")
HANDLE_FAULT_TOLERANCE: Final = Op[Json]("handle_fault_tolerance", (Json,), Json, since="0.27")
RELEASE_KV_CACHE_MEMORY: Final = Op[None]("release_kv_cache_memory", since="0.31")
COMPUTE_WEIGHT_CHECKSUMS: Final = Op[list[Json]]("compute_weight_checksums", (), list[Json], since="0.32")
PAUSE_GENERATION: Final = Op[None]("pause_generation", (str, bool), since="0.33", required=0)

OPS: Final[dict[str, Op[Any]]] = {op.name: op for op in list(globals().values()) if isinstance(op, Op)}
"""vLLM's operations by name."""
