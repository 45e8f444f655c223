"""Routes that say how things are. None of them asks an engine anything, so they answer while one is busy or stuck."""

from __future__ import annotations

import time
from urllib.parse import unquote

from muro.errors import NotFoundError
from muro.server.exchange import Exchange
from muro.server.health import health
from muro.server.metrics import CONTENT_TYPE, ServingCollector, page
from muro.server.own_metrics import OwnCollector, numbers_of
from muro.server.schemas.models import ModelCard, ModelList
from muro.server.service import Service
from muro.version import VERSION


class VersionRoute:
    """`GET /version`."""

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, {"version": VERSION})


class ModelsRoute:
    """`GET /v1/models`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.reply_json(200, ModelList([_card(self._service, name) for name in self._service.names]))


class ModelRoute:
    """`GET /v1/models/NAME`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        name = unquote(exchange.scope["path_params"]["name"])
        if name not in self._service.names:
            raise NotFoundError(f"there is no model {name[:200]!r} here")
        await exchange.reply_json(200, _card(self._service, name))


class MetricsRoute:
    """`GET /metrics`, for Prometheus."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        service, model = self._service, self._service.names[0]
        numbers = await service.crew.add_up(numbers_of(service))
        now = time.monotonic()
        found = health(service, int(now * 1e9))
        collectors = (ServingCollector(numbers, model), OwnCollector(numbers, model, found, now))
        # Of several servers it would be another one's each time.
        text = page(collectors, process=not found.servers)
        await exchange.reply(200, text, {"content-type": CONTENT_TYPE})


def _card(service: Service, name: str) -> ModelCard:
    return ModelCard(name, service.created, max_model_len=service.llm.words.max_model_len, root=service.names[0])
