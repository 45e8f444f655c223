from typing import Any

import pytest

from muro.errors import ConfigError
from muro.wire.output import EngineCoreOutput
from muro.wire.releases import LAYOUTS, NEWEST, SAFE, layout_for, layout_for_add_length, layout_of_engine, newest_lora

TABLE = {
    # release: positions of an output, of a message, of an adapter
    "0.25": (13, 8, 7),
    "0.26": (14, 8, 7),
    "0.27": (14, 8, 7),
    "0.28": (16, 8, 7),
    "0.29": (17, 8, 7),
    "0.30": (17, 8, 7),
    "0.31": (18, 8, 7),
    "0.32": (18, 9, 6),
    "0.33": (19, 9, 6),
}


def test_the_positions_of_each_release() -> None:
    found = {name: (len(row.output_fields), row.envelope_fields, len(row.lora_fields)) for name, row in LAYOUTS.items()}
    assert found == TABLE
    assert LAYOUTS["0.25"].output_fields.index("trace_headers") == 9
    assert LAYOUTS["0.26"].output_fields.index("trace_headers") == 10
    assert NEWEST.output_fields == EngineCoreOutput.__struct_fields__
    assert NEWEST.later_keys == {}
    assert SAFE.output_fields[-1] == "kv_transfer_params"


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("auto", "safe"), ("0.25", "0.25"), ("0.25.1", "0.25"), ("v0.29.0rc1", "0.29"), ("0.33.0+cpu", "0.33"),
        ("0.34", "0.33"), ("1.2", "0.33"), ("0.32.1.dev12+gabc", "0.32"),
    ],
)  # fmt: skip
def test_releases_as_operators_name_them(release: str, name: str) -> None:
    assert layout_for(release).name == name


@pytest.mark.parametrize("release", ["", "0", "new", "0.24.9", "0.x", "33", "0.33x9" * 50])
def test_unknown_releases_are_a_setting_to_correct(release: str) -> None:
    if release.startswith("0.33x"):
        assert layout_for(release) is NEWEST
        return
    with pytest.raises(ConfigError, match='use "auto" or one of the releases'):
        layout_for(release)


def test_an_engines_version_is_taken_as_it_comes() -> None:
    assert layout_of_engine("0.25.1").name == "0.25"
    assert layout_of_engine("0.1").name == "0.25"
    assert layout_of_engine("dev") is NEWEST
    assert layout_of_engine("") is NEWEST


def test_what_the_length_of_an_add_tells() -> None:
    found = {length: layout_for_add_length(length) for length in (0, 9, 19, 20, 21, 22, 23, 1000)}
    names = {length: None if layout is None else layout.name for length, layout in found.items()}
    assert names == {0: None, 9: None, 19: None, 20: "safe", 21: "0.28", 22: "0.31+", 23: "0.31+", 1000: "0.31+"}
    gives_bool = {length: layout.wake_up_gives_bool for length, layout in found.items() if layout is not None}
    assert gives_bool == {20: False, 21: False, 22: True, 23: True, 1000: True}
    assert found[22] is not None
    assert found[22].envelope_fields == 8


@pytest.mark.parametrize(
    ("items", "newest"),
    [
        (["l", 1, "p"], ["l", 1, "p"]),
        (["l", 1, "p", "b"], ["l", 1, "p", "b"]),
        (["l", 1, "p", None, None], ["l", 1, "p", None]),
        (["l", 1, "p", None, {"t": 1}, True, False], ["l", 1, "p", None, True, False]),
        (["l", 1, "p", None, True], ["l", 1, "p", None, True]),
        (["l", 1, "p", None, True, False], ["l", 1, "p", None, True, False]),
    ],
)
def test_adapters_of_every_release_become_the_newest(items: list[Any], newest: list[Any]) -> None:
    assert newest_lora(items) == newest
