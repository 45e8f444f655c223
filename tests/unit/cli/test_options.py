"""options.py: flags made of structs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from muro.cli.options import ServeOptions, engine_options, flags, pairs
from muro.errors import ConfigError


class Options(msgspec.Struct, frozen=True, kw_only=True):
    place: Annotated[str, typer.Argument(help="where")]
    how_many: Annotated[int, typer.Option(min=1, help="count")] = 3


def test_a_field_is_a_flag_with_its_default_and_its_help() -> None:
    seen: list[Options] = []
    app = typer.Typer()
    app.command()(flags(Options)(seen.append))
    run = CliRunner().invoke
    assert run(app, ["here"]).exit_code == 0
    assert run(app, ["there", "--how-many", "5"]).exit_code == 0
    assert seen == [Options(place="here"), Options(place="there", how_many=5)]
    assert run(app, []).exit_code == 2
    assert run(app, ["x", "--how-many", "0"]).exit_code == 2
    assert run(app, ["x", "--other", "0"]).exit_code == 2
    assert "count" in run(app, ["--help"]).output


@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e300"])
def test_what_is_no_amount_is_refused(number: str) -> None:
    run = flags(ServeOptions)(lambda options: None)
    with pytest.raises(ConfigError, match="--startup-timeout"):
        run(startup_timeout=float(number))
    run(startup_timeout=0.5)


def test_options_of_the_engine() -> None:
    options = ServeOptions(engine_option=["step-ms=20", "path=a=b"], max_num_seqs=4)
    assert engine_options(options) == {"step_ms": "20", "path": "a=b", "max_num_seqs": 4}
    assert engine_options(ServeOptions(engine="sim", fault=["hang"])) == {"fault": ["hang"]}
    with pytest.raises(ConfigError, match="--engine sim"):
        engine_options(ServeOptions(engine="echo", fault=["hang"]))
    given = ServeOptions(scheduling_policy="priority", enable_prefix_caching=False, async_scheduling=True)
    wanted = {"scheduling_policy": "priority", "enable_prefix_caching": False, "async_scheduling": True}
    assert engine_options(given) == wanted


@pytest.mark.parametrize("text", ["x", "=1", ""])
def test_not_a_pair(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        pairs([text])
