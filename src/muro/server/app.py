"""The ASGI application: which path leads where, and that every error gets an answer in OpenAI's shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from muro.errors import MuroError, RequestError
from muro.server.connection import SURPLUS
from muro.server.errors import reply, reply_to
from muro.server.exchange import Exchange, GoneError, Receive, Scope, Send
from muro.server.gate import ApiKeys, check, closing
from muro.server.openapi import DocumentRoute, PageRoute
from muro.server.service import Service
from muro.server.table import Handler, entries

log = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_app(
    service: Service, keys: ApiKeys | None = None, origins: Sequence[str] = (), *, dev_mode: bool = False
) -> App:
    """The application for one service. It has no lifespan: whoever makes it starts and stops the model.

    Args:
        service: what is served.
        keys: who may use it; None: everybody.
        origins: whose web pages may (CORS); none: those of nobody else.
        dev_mode: whether callers may control the engines.
    """
    keys = keys or ApiKeys()
    table = entries(service, dev_mode=dev_mode)
    routes = [_route(entry.method, entry.path, entry.handler) for entry in table]
    described = DocumentRoute(table, service.names[0], keyed=len(keys) > 0)
    routes += [_route("GET", "/openapi.json", described), _route("GET", "/docs", PageRoute())]
    router = Router(routes, redirect_slashes=False)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # With an "app" in the scope Starlette raises for an unknown path or method instead of answering in plain text.
        scope["app"] = app
        if service.closing or SURPLUS in scope:
            send = closing(send)
        try:
            check(scope, keys)
        except RequestError as error:
            return await Exchange(scope, receive, send).reply_error(reply_to(error))
        try:
            await router(scope, receive, send)
        except HTTPException as error:
            what = f"{scope['method']} {scope['path'][:200]}: {error.detail}"
            code = "not_found" if error.status_code == 404 else "method_not_allowed"
            answer = reply(error.status_code, what, code=code, headers=dict(error.headers or {}))
            await Exchange(scope, receive, send).reply_error(answer)

    if not origins:
        return app
    return CORSMiddleware(app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"])


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(path, _Endpoint(handler), methods=[method])


class _Endpoint:
    """A handler as an ASGI application. What it raises becomes the answer, if there is none yet."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            exchange.check_request_id()
            await self._handler(exchange)
        except GoneError:
            return
        except Exception as error:
            if not isinstance(error, MuroError):
                log.exception("request %s failed", exchange.request_id)
            if exchange.started:
                raise
            await exchange.reply_error(reply_to(error))
