"""Changing the number of engines over HTTP, for developers: whoever reaches it starts processes, ends others' work.

So it exists in developer mode only, as every control does. A caller who goes away gives up what has not happened yet.
"""

from __future__ import annotations

from muro.errors import UsageError
from muro.server.errors import reply
from muro.server.exchange import Exchange
from muro.server.schemas.control import Message, Scaled, ScaleElasticEpRequest, ScaleRequest
from muro.server.schemas.request import decode_request
from muro.server.service import Service


class ScaleRoute:
    """`POST /scale`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode_request(await exchange.body(self._service.chat_body_bounds), ScaleRequest)
        if await scaled(self._service, exchange, asked.engines, asked.drain_timeout):
            ranks = [status.rank for status in self._service.llm.engines() if status.state == "serving"]
            await exchange.reply_json(200, Scaled(list(ranks)))


class ScaleElasticEpRoute:
    """`POST /scale_elastic_ep`, the name of vLLM's server for it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode_request(await exchange.body(self._service.chat_body_bounds), ScaleElasticEpRequest)
        if await scaled(self._service, exchange, asked.new_data_parallel_size, asked.drain_timeout):
            await exchange.reply_json(200, Message(f"Scaled to {asked.new_data_parallel_size} data parallel engines"))


async def scaled(service: Service, exchange: Exchange, engines: int, drain_timeout: float) -> bool:
    """Change the number; False if it cannot be changed, which was answered then with 409."""
    async with exchange.while_connected():
        try:
            await service.llm.client.scale(engines, drain_timeout=drain_timeout)
        except UsageError as error:
            await exchange.reply_error(reply(409, error.message, code=error.code))
            return False
    return True
