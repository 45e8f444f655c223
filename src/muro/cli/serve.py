"""`muro serve`: an engine behind HTTP, or (--headless) an engine alone."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING

from muro.cli.options import EXIT_CODES, LOOPBACK, ServeOptions, engine_options, flags, restart_policy
from muro.cli.rank_options import check_headless, group_elsewhere, ranks_of_front_end
from muro.cli.ray_options import ray_config
from muro.cli.stopping import stopping
from muro.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from muro.config import ConnectConfig
    from muro.llm.words import ModelChoice
    from muro.server.lifespan import ServerConfig
    from muro.server.limits import HttpLimits
    from muro.server.service import Service

HELP = f"""Serve a model with an OpenAI-compatible API; its engine runs in a process of its own.

\b
Examples:
    muro serve ~/.cache/muro/models/SmolLM2-135M-Instruct
    muro serve --engine echo --port 9000
    muro serve --engine my_engine.py:MyEngine --engine-option depth=3
    muro serve demo --data-parallel-size 2 --api-server-count 2
    muro serve demo --headless -dpa 10.0.0.1 -dpp 29550

{EXIT_CODES}
"""

log = logging.getLogger(__name__)

_LOG_FORMAT = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"


@flags(ServeOptions)
def serve(options: ServeOptions) -> None:
    """See `HELP`."""
    logging.basicConfig(level=_level(options.log_level), format=_LOG_FORMAT)
    choice = _choice(options)
    code = _headless(options, choice) if options.headless else _serve(options, choice)
    if code == 0:
        print("stopped", flush=True)
    sys.exit(code)


def _level(name: str) -> int:
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise ConfigError(f"--log-level {name!r}: there is {', '.join(logging.getLevelNamesMapping())}")
    return level


def _choice(options: ServeOptions) -> ModelChoice:
    from muro.llm.words import ModelChoice

    return ModelChoice(
        model=options.model,
        engine=options.engine,
        options=engine_options(options),
        tokenizer=options.tokenizer,
        chat_template=options.chat_template,
        generation_config=options.generation_config,
        tool_call_parser=options.tool_call_parser,
        max_model_len=options.max_model_len,
    )


def _serve(options: ServeOptions, choice: ModelChoice) -> int:
    import asyncio

    try:
        import uvloop

        from muro.server.lifespan import bind, serve
        from muro.server.limits import raise_file_limit
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving HTTP (no module {error.name!r})", "serve") from None
    from muro.cli.progress import StartupShow

    choice.engine_config()  # whatever is wrong with it is told before anything else happens
    _check_serving(options)
    connect, config = _connect_config(options), _server_config(options)
    raise_file_limit()
    announce = partial(_announce, keyed=options.api_key_file is not None)
    if options.api_server_count > 1:
        if connect.ray is not None:
            raise ConfigError(
                "--api-server-count is 1 with --data-parallel-backend ray: several servers start engines here"
            )
        from muro.cli.serve_many import serve_many

        stopping.begin()
        many, level, restart = options.api_server_count, options.log_level.upper(), restart_policy(options)
        return _ended(serve_many(many, choice, connect, config, restart, level, announce))
    listener = bind(config.host, config.port)
    stopping.begin()
    with StartupShow() as show:

        def on_serving(url: str, service: Service) -> None:
            show.close()
            announce(url, service.names[0], service.llm.words.template is not None)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(
                serve(
                    listener,
                    choice,
                    connect,
                    config,
                    on_progress=show,
                    on_serving=on_serving,
                    take_signals=stopping.tell,
                )
            )
    return _ended(code)


def _connect_config(options: ServeOptions) -> ConnectConfig:
    from muro.config import ConnectConfig, EngineConfig

    ranks = ranks_of_front_end(options)
    elsewhere = ranks.local < ranks.count
    ray = ray_config(options)
    if options.data_parallel_address is not None and ray is None and not elsewhere:
        log.warning(
            "--data-parallel-address %s has no effect: all engines are started here; how many are, and how many dial "
            "in, is said by --data-parallel-size-local and --data-parallel-size",
            options.data_parallel_address,
        )
    host = options.data_parallel_address if ray is not None or elsewhere else None
    if elsewhere and host is None:
        host = LOOPBACK
    return ConnectConfig(
        num_engines=ranks.count,
        start_rank=ranks.first,
        other_front_ends=ranks.others,
        num_local_engines=ranks.local,
        data_parallel_balance=options.data_parallel_balance,
        ray=ray,
        host=host,
        handshake_port=options.data_parallel_rpc_port if elsewhere else 0,
        curve_dir=options.curve_dir,
        curve_secret_fd=options.curve_secret_fd,
        insecure_tcp=options.insecure_tcp,
        startup_timeout=options.startup_timeout,
        stall_limit=options.stall_limit or None,
        restart=restart_policy(options),
        engine=EngineConfig(log_level=options.log_level.upper(), lockstep=ranks.lockstep),
    )


def _ended(code: int) -> int:
    stopping.end()
    if stopping.forced_by:
        return 128 + stopping.forced_by
    return code


def _server_config(options: ServeOptions) -> ServerConfig:
    from muro.llm.replay import DeathPolicy
    from muro.server.lifespan import ServerConfig

    return ServerConfig(
        host=options.host,
        port=options.port,
        health_port=options.health_port,
        served_names=tuple(options.served_model_name or ()),
        dev_mode=options.enable_dev_mode,
        shutdown_timeout=options.shutdown_timeout,
        grammar_check="muro.engines.grammars:checker",
        deaths=DeathPolicy(on_engine_death=options.on_engine_death, restart_wait=options.restart_wait),
        limits=_limits(options),
        api_key_file=options.api_key_file,
        tls_certfile=options.ssl_certfile,
        tls_keyfile=options.ssl_keyfile,
        allowed_origins=tuple(options.allowed_origins or ()),
    )


def _limits(options: ServeOptions) -> HttpLimits:
    import msgspec

    from muro.server.limits import HttpLimits

    given = {field: getattr(options, field, None) for field in HttpLimits.__struct_fields__}
    given["keep_alive_timeout"] = options.timeout_keep_alive
    return msgspec.structs.replace(HttpLimits(), **{name: value for name, value in given.items() if value is not None})


def _announce(url: str, name: str, chat: bool, *, keyed: bool) -> None:
    body: dict[str, object] = {"model": name}
    if not chat:
        path = "completions"
        body |= {"prompt": "The capital of France is", "max_tokens": 16}
    else:
        path = "chat/completions"
        body |= {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 64}
    print(f"{name} is served on {url}   (Ctrl-C stops it)")
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    print(f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{json.dumps(body)}'", flush=True)


def _check_serving(options: ServeOptions) -> None:
    """Refuse what makes no sense for a front-end. Raises ConfigError."""
    if options.rejoin:
        raise ConfigError("--rejoin is for engines that dial in; it goes with --headless")
    if options.peer_release != "auto":
        raise ConfigError("--peer-release is for engines that dial in (--headless); a front-end reads every release")
    if options.on_engine_death == "replay" and options.restart == "never":
        raise ConfigError("--on-engine-death replay goes on with a new engine, and --restart never starts none")


def _check_dialling(options: ServeOptions) -> None:
    """Refuse what makes no sense for an engine that dials in. Raises ConfigError."""
    from muro.llm.words import MODEL_ENGINES
    from muro.wire.releases import layout_for

    if options.curve_dir is not None and options.insecure_tcp:
        raise ConfigError("--curve-dir and --insecure-tcp exclude each other")
    if options.curve_secret_fd is not None and options.curve_dir is None:
        raise ConfigError("--curve-secret-fd gives the secret key alone; --curve-dir says where the front-end's is")
    if options.data_parallel_backend == "ray":
        raise ConfigError("--headless runs one engine here; --data-parallel-backend ray is for the front-end")
    if options.api_server_count > 1:
        raise ConfigError("--api-server-count is for front-ends; with --headless nobody serves HTTP")
    layout_for(options.peer_release)
    if options.max_model_len is not None and options.engine not in (None, *MODEL_ENGINES):
        raise ConfigError(
            f"--max-model-len is not known to the engine {options.engine!r}; if it has such an option, say "
            f"--engine-option max_model_len={options.max_model_len}"
        )


def _headless(options: ServeOptions, choice: ModelChoice) -> int:
    import msgspec

    from muro.engine.loader import check_installed
    from muro.process.main import run_headless
    from muro.transport.endpoint import check_clear, tcp_endpoint
    from muro.transport.keys import engine_keys

    if options.data_parallel_size_local not in (None, 1):
        raise ConfigError("--headless runs one engine; start one command for each: --data-parallel-start-rank")
    check_headless(options)
    _check_dialling(options)
    engine = choice.engine_config()
    check_installed(engine.engine)  # told before a front-end is waited for
    keys = None if options.curve_dir is None else engine_keys(options.curve_dir, options.curve_secret_fd)
    config = msgspec.structs.replace(
        engine,
        rank=options.data_parallel_start_rank,
        handshake_address=tcp_endpoint(options.data_parallel_address or LOOPBACK, options.data_parallel_rpc_port),
        local=False,
        headless=True,
        rejoin=options.rejoin,
        peer_release=options.peer_release,
        curve=keys,
        insecure_tcp=options.insecure_tcp,
        lockstep=group_elsewhere(options, options.data_parallel_address or LOOPBACK),
        shutdown_timeout=options.shutdown_timeout,
        handshake_timeout=options.startup_timeout,
        log_level=options.log_level.upper(),
    )
    if keys is None and not options.insecure_tcp:
        check_clear(config.handshake_address, False)
    patience = "as long as it takes" if options.rejoin else f"{config.handshake_timeout:g} s at most"
    print(
        f"engine {config.rank} ({config.engine}) dials the front-end at {config.handshake_address} and waits for it, "
        f"{patience}   (Ctrl-C stops it)",
        flush=True,
    )
    return run_headless(config)
