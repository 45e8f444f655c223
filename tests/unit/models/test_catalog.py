import pytest

from muro.errors import ConfigError
from muro.models.catalog import CATALOG, find


def test_entries_are_found_by_name() -> None:
    assert find("demo").directory == "SmolLM2-135M-Instruct"
    assert all(name == entry.name and len(entry.sha256) == 64 for name, entry in CATALOG.items())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'other'.*demo"):
        find("other")


@pytest.mark.parametrize("path", ["/wrong", "./demo", "models/demo", ".."])
def test_a_path_is_told_from_a_name(path: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no directory .*; models that can be fetched: demo"):
        find(path)
