import threading
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.atomic import add_file, is_complete, publish


def write(text: str):
    def build(directory: Path) -> None:
        (directory / "file").write_text(text)

    return build


def write_file(path: Path) -> None:
    path.write_text("b")


def never(directory: Path) -> None:
    pytest.fail("built again")


def test_it_is_built_once(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    assert publish(target, "key", write("a")) == target
    assert (target / "file").read_text() == "a"
    publish(target, "key", never)


def test_another_key_builds_anew(tmp_path: Path) -> None:
    target = tmp_path / "model"
    publish(target, "old", write("a"))
    (target / "stale").touch()
    publish(target, "new", write("b"))
    assert (target / "file").read_text() == "b"
    assert not (target / "stale").exists()


def test_a_directory_without_the_marker_is_not_used(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "file").write_text("half")
    assert not is_complete(target, "key")
    publish(target, "key", write("whole"))
    assert (target / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [ValueError("damaged"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def build(directory: Path) -> None:
        write("half")(directory)
        raise error

    with pytest.raises(type(error)):
        publish(tmp_path / "model", "key", build)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]


def test_a_failure_keeps_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "model"
    publish(target, "old", write("a"))
    with pytest.raises(ZeroDivisionError):
        publish(target, "new", lambda directory: 1 / 0)
    assert is_complete(target, "old")


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    leftover = tmp_path / ".model.partial-abc"
    leftover.mkdir()
    (leftover / "file").touch()
    publish(tmp_path / "model", "key", write("a"))
    assert not leftover.exists()


def test_of_two_at_once_one_builds_and_both_have_it(tmp_path: Path) -> None:
    target = tmp_path / "model"
    building, go_on, built = threading.Event(), threading.Event(), []

    def build(directory: Path) -> None:
        building.set()
        assert go_on.wait(10)
        built.append(directory)

    threads = [threading.Thread(target=publish, args=(target, "key", build)) for _ in range(2)]
    threads[0].start()
    assert building.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert len(built) == 1
    assert is_complete(target, "key")


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="MURO_HOME"):
        publish(tmp_path / "file" / "model", "key", never)


def test_a_file_is_added_once(tmp_path: Path) -> None:
    target = publish(tmp_path / "model", "key", write("a")) / "more"
    assert add_file(target, write_file) == target
    add_file(target, never)
    assert sorted(path.name for path in target.parent.iterdir()) == [".complete", "file", "more"]
    assert target.read_text() == "b" and is_complete(target.parent, "key")


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    target = publish(tmp_path / "model", "key", write("a")) / "more"

    def build(path: Path) -> None:
        path.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add_file(target, build)
    assert sorted(path.name for path in target.parent.iterdir()) == [".complete", "file"]
