"""The flags of `muro serve` about HTTP: bounds (each a field of `HttpLimits`), deadlines, keys, TLS."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

_BOUNDS, _TRUST = "Bounds of HTTP", "Trust"

_SECONDS: dict[str, Any] = {"min": 0.001, "rich_help_panel": _BOUNDS}
_COUNT: dict[str, Any] = {"min": 1, "rich_help_panel": _BOUNDS}


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Part of `options.ServeOptions`."""

    max_connections: Annotated[
        int,
        typer.Option(
            help="Callers at once, as far as the limit of open files allows; others get 503, or no answer.",
            **_COUNT,
        ),
    ] = 8192
    max_queued_requests: Annotated[
        int, typer.Option(help="Choices that may wait for their first token; more get 503 with Retry-After.", **_COUNT)
    ] = 2048
    max_queued_tokens: Annotated[
        int,
        typer.Option(
            help="Tokens of the prompts that may wait for their first token; more get 503 with Retry-After. "
            "An empty queue takes any one request.",
            **_COUNT,
        ),
    ] = 4 << 20
    max_body_bytes: Annotated[
        int | None,
        typer.Option(help="Size of a body; default: 64 bytes per token of context, 4 to 64 MiB.", **_COUNT),
    ] = None
    head_timeout: Annotated[
        float, typer.Option(help="Seconds for the head of a request to arrive; then 408.", **_SECONDS)
    ] = 20.0
    body_timeout: Annotated[
        float, typer.Option(help="Seconds for the body of a request to arrive; then 408.", **_SECONDS)
    ] = 60.0
    timeout_keep_alive: Annotated[
        float,
        typer.Option(
            help="Seconds that an idle connection stays open. More than the 60 to 90 s of proxies: then none "
            "of them sends a request into a connection that is being closed.",
            **_SECONDS,
        ),
    ] = 120.0
    slow_reader_timeout: Annotated[
        float,
        typer.Option(
            help="Seconds that a reader may take nothing of a full buffer; then its request is aborted.", **_SECONDS
        ),
    ] = 60.0
    max_unread_tokens: Annotated[
        int, typer.Option(help="Tokens that a reader may be behind; then its request is aborted.", **_COUNT)
    ] = 16384
    queue_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds from arrival until a request runs, else 504. Default: no bound. For this and the two below, "
            "the header X-Request-Timeout (30, or queue=2, first-token=10, total=30) asks for other values.",
            **_SECONDS,
        ),
    ] = None
    first_token_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds from arrival to the first token, else 504. Default: no bound.", **_SECONDS),
    ] = None
    request_timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds from arrival to the end, else 504 or an error as last event. Default: no bound.",
            **_SECONDS,
        ),
    ] = None
    max_request_timeout: Annotated[
        float | None,
        typer.Option(help="The most that a caller may ask for, in seconds, and the bound if none is.", **_SECONDS),
    ] = None
    api_key_file: Annotated[
        str | None,
        typer.Option(
            help="File of API keys, one a line; callers send Authorization: Bearer KEY. Health stays open.",
            rich_help_panel=_TRUST,
        ),
    ] = None
    enable_dev_mode: Annotated[
        bool,
        typer.Option(
            "--enable-dev-mode",
            help="Let callers control the engines: /pause, /sleep, /reset_prefix_cache, /collective_rpc and more, as "
            "/docs lists. Whoever reaches these can stop everybody's work.",
            rich_help_panel=_TRUST,
        ),
    ] = False
    ssl_certfile: Annotated[
        str | None, typer.Option(help="Certificate (PEM, with its chain): serve HTTPS.", rich_help_panel=_TRUST)
    ] = None
    ssl_keyfile: Annotated[
        str | None, typer.Option(help="Its private key, if it is in a file of its own.", rich_help_panel=_TRUST)
    ] = None
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            help="Origin whose web pages may use the server (CORS); may be repeated, * for all. Default: none.",
            rich_help_panel=_TRUST,
        ),
    ] = None
