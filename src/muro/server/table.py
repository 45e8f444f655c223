"""Every path that is served: what answers it, and what its documentation says. `openapi.py` writes the latter down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from muro.server.exchange import Exchange
from muro.server.health import Health
from muro.server.routes.chat import ChatDialect
from muro.server.routes.completions import CompletionDialect
from muro.server.routes.control import CONTROLS, ControlRoute
from muro.server.routes.embeddings import EmbeddingWork
from muro.server.routes.health import HealthRoute, LivezRoute, ReadyzRoute
from muro.server.routes.info import MetricsRoute, ModelRoute, ModelsRoute, VersionRoute
from muro.server.routes.reception import GenerationWork, WorkRoute
from muro.server.routes.scale import ScaleElasticEpRoute, ScaleRoute
from muro.server.routes.tokens import TextRoute, detokenize, tokenize
from muro.server.schemas.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionRequest
from muro.server.schemas.completions import Completion, CompletionRequest
from muro.server.schemas.control import Message, Scaled, ScaleElasticEpRequest, ScaleRequest
from muro.server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from muro.server.schemas.models import ModelCard, ModelList
from muro.server.schemas.tokens import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from muro.server.service import Service

Handler = Callable[[Exchange], Awaitable[None]]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One path with one method."""

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    group: str
    summary: str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    """As JSON; None: plain text, or nothing."""
    event: type[msgspec.Struct] | None = None
    """Of an answer that is streamed."""


class DeepOption(msgspec.Struct):
    """`deep`: have every engine make a token."""

    deep: bool = False


def entries(service: Service, *, dev_mode: bool = False) -> list[Entry]:
    """The table.

    Args:
        service: what is served.
        dev_mode: whether there are routes that control the engines.
    """
    return [*_generating(service), *_telling(service), *(_controlling(service) if dev_mode else ())]


def _generating(service: Service) -> list[Entry]:
    group = "Generate"
    return [
        Entry(
            method="POST", path="/v1/chat/completions", group=group, summary="Answer a chat",
            handler=WorkRoute(service, GenerationWork(service, ChatDialect(service))),
            body=ChatCompletionRequest, answer=ChatCompletion, event=ChatCompletionChunk,
        ),
        Entry(
            method="POST", path="/v1/completions", group=group, summary="Continue texts",
            handler=WorkRoute(service, GenerationWork(service, CompletionDialect(service))),
            body=CompletionRequest, answer=Completion, event=Completion,
        ),
        Entry(
            method="POST", path="/v1/embeddings", group=group, summary="Make vectors of texts",
            handler=WorkRoute(service, EmbeddingWork(service)), body=EmbeddingRequest, answer=EmbeddingList,
        ),
        Entry(
            method="POST", path="/tokenize", group=group, summary="Token ids of a text or chat",
            handler=TextRoute(service, TokenizeRequest, tokenize), body=TokenizeRequest, answer=TokenizeResponse,
        ),
        Entry(
            method="POST", path="/detokenize", group=group, summary="Text of token ids",
            handler=TextRoute(service, DetokenizeRequest, detokenize),
            body=DetokenizeRequest, answer=DetokenizeResponse,
        ),
    ]  # fmt: skip


def _telling(service: Service) -> list[Entry]:
    group = "Ask how things are"
    return [
        Entry(
            method="GET", path="/v1/models", group=group, summary="What is served",
            handler=ModelsRoute(service), answer=ModelList,
        ),
        Entry(
            method="GET", path="/v1/models/{name:path}", group=group, summary="One of them",
            handler=ModelRoute(service), answer=ModelCard,
        ),
        Entry(method="GET", path="/livez", group=group, summary="Whether this process lives", handler=LivezRoute()),
        Entry(
            method="GET", path="/readyz", group=group, summary="Whether requests should be sent here",
            handler=ReadyzRoute(service),
        ),
        Entry(
            method="GET", path="/health", group=group, summary="How the engines are",
            handler=HealthRoute(service), query=DeepOption, answer=Health,
        ),
        Entry(method="GET", path="/version", group=group, summary="Of this server", handler=VersionRoute()),
        Entry(method="GET", path="/metrics", group=group, summary="For Prometheus", handler=MetricsRoute(service)),
    ]  # fmt: skip


def _controlling(service: Service) -> list[Entry]:
    group = "Control the engines (developer mode)"
    scaling = [
        Entry(
            method="POST", path="/scale", group=group, summary="Change the number of engines",
            handler=ScaleRoute(service), body=ScaleRequest, answer=Scaled,
        ),
        Entry(
            method="POST", path="/scale_elastic_ep", group=group, summary="The same, as vLLM's server names it",
            handler=ScaleElasticEpRoute(service), body=ScaleElasticEpRequest, answer=Message,
        ),
    ]  # fmt: skip
    return scaling + [
        Entry(
            method=control.method,
            path=control.path,
            group=group,
            summary=control.summary,
            handler=ControlRoute(service, control),
            query=None if control.in_body else control.options,
            body=control.options if control.in_body else None,
            answer=control.answer,
        )
        for control in CONTROLS
    ]
