"""May a request go on after its engine has died, and how. Pure: requests in, requests out.

Without output it starts again, on any engine. With output it continues: the tokens that its reader has taken over are
put behind its prompt, and `extra_args["muro_resumed_tokens"]` says how many they are. An engine that understands this
counts them as output, so that positions, limits, seeds and grammars go on where they stopped; detokenisation and stop
strings live on this side of the wall and never notice.

Who may run at which time after deaths is the business of `quarantine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from muro.config import RestartPolicy
from muro.errors import ConfigError, EngineDeadError, RequestFailedError
from muro.wire.handshake import ReadyResponse
from muro.wire.request import RESUMED_TOKENS, EngineCoreRequest, SamplingParams

RESTART_WAIT = 60.0
"""Seconds; see `DeathPolicy`."""

_SENT_BY_OTHERS = frozenset({-1, -2, -9, -15})
"""Exit statuses of SIGHUP, SIGINT, SIGKILL and SIGTERM: what people, supervisors and the kernel send."""


class DeathPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of requests when an engine dies that will be replaced."""

    on_engine_death: Literal["fail", "replay"] = "fail"
    """Of those that were running on it: an error, or they go on."""
    restart_wait: float = RESTART_WAIT
    """Seconds that requests which are not running wait for the new engine; 0: none, they fail at once."""

    def __post_init__(self) -> None:
        if self.on_engine_death not in ("fail", "replay"):
            raise ConfigError(f'on_engine_death is {self.on_engine_death!r}; it must be "fail" or "replay"')
        if not self.restart_wait >= 0:
            raise ConfigError(f"restart_wait is {self.restart_wait}; it must not be negative")

    def restarts(self, asked: RestartPolicy) -> RestartPolicy:
        """Which engines to restart: to replay anything, there must be one to go on with."""
        if self.on_engine_death == "fail" or asked.policy != "never":
            return asked
        return msgspec.structs.replace(asked, policy="on-failure")


def understands(ready: ReadyResponse | None) -> bool:
    """Whether an engine has said that it continues requests."""
    return ready is not None and ready.muro is not None and RESUMED_TOKENS in ready.muro.features


def continued(request: EngineCoreRequest, delivered: Sequence[int]) -> EngineCoreRequest:
    """The request that makes the tokens which come after `delivered`; the very request if there are none."""
    params = request.sampling_params
    if not delivered or params is None:
        return request
    extra = dict(params.extra_args or {})
    extra[RESUMED_TOKENS] = (extra.get(RESUMED_TOKENS) or 0) + len(delivered)
    kinds = request.prompt_is_token_ids
    return msgspec.structs.replace(
        request,
        prompt_token_ids=[*(request.prompt_token_ids or ()), *delivered],
        prompt_is_token_ids=None if kinds is None else [*kinds, *[True] * len(delivered)],
        # Those of the prompt came with the first output.
        sampling_params=msgspec.structs.replace(params, extra_args=extra, prompt_logprobs=None),
    )


def obstacle(request: EngineCoreRequest, num_delivered: int, engines: Iterable[ReadyResponse | None]) -> str | None:
    """Why a request cannot go on on one of `engines` after so many tokens; None if it can."""
    params = request.sampling_params
    if not num_delivered:
        return None
    if params is None or request.prompt_embeds is not None:
        return "its prompt does not consist of tokens"
    if not all(map(understands, engines)):
        return f"its engine does not know how to continue a request (extra_args[{RESUMED_TOKENS!r}])"
    return None


def cannot_continue(request_id: str, num_delivered: int, why: str, death: EngineDeadError | None) -> RequestFailedError:
    """The error for a request with an obstacle."""
    error = RequestFailedError(
        f"the engine died when {num_delivered} tokens of this request had been delivered, and it cannot be continued: "
        + (why if death is None else f"{why}. {death.message}"),
        request_id=request_id,
    )
    error.__cause__ = death
    return error


def seeded(params: SamplingParams, seed: int) -> SamplingParams:
    """Parameters that give the same tokens in every attempt: those without a seed get `seed`."""
    return params if params.seed is not None else msgspec.structs.replace(params, seed=seed)


def sent_by_others(death: EngineDeadError) -> bool:
    """Whether an engine may have been killed from outside, so that its end says little about what it was doing.

    A crash, an exit, an exception and a verdict of being stuck are the engine's own doing. So may a SIGKILL be, if the
    kernel sent it for want of memory: this cannot be told.
    """
    if death.stuck:
        return False
    return death.exit_status in _SENT_BY_OTHERS or (death.exit_status is None and death.pid is None)
