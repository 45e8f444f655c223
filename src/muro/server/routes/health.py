"""`/livez`, `/readyz`, `/health`: for those who start, stop and route. Answered from memory, unless it is deep."""

from __future__ import annotations

import time
from urllib.parse import parse_qs

from muro.server.exchange import Exchange
from muro.server.health import health
from muro.server.probe import DeepProbe, Probed
from muro.server.service import Service

_TEXT = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"}


class LivezRoute:
    """`GET /livez`: 200 as long as this process answers at all; whether it should be killed."""

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.reply(200, b"ok\n", _TEXT)


class ReadyzRoute:
    """`GET /readyz`: 200, or 503 and why; whether requests should be sent here."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        reason = self._service.obstacle()
        text = "ok" if reason is None else reason
        await exchange.reply(200 if reason is None else 503, f"{text}\n".encode(), _TEXT)


class HealthRoute:
    """`GET /health`: as `readyz`, with the state of every engine; `?deep=1` has each make a token as well."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._probe = DeepProbe(service.llm)

    async def __call__(self, exchange: Exchange) -> None:
        deep: list[Probed] | None = None
        if parse_qs(exchange.scope["query_string"].decode("latin-1")).get("deep", ["0"])[-1] not in ("", "0", "false"):
            deep = await self._probe()
        found = health(self._service, time.monotonic_ns())
        found.deep = deep
        if deep is not None and found.reason is None and any(probed.result == "failed" for probed in deep):
            found.status, found.reason = "unavailable", "an engine did not answer the deep probe"
        headers = {"cache-control": "no-store"}
        await exchange.reply_json(200 if found.reason is None else 503, found, headers)
