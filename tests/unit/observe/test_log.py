import logging
import sys

import msgspec
import pytest

from muro.observe.log import MAX_RECORD_BYTES, Thresholds, decode, encode


def record(message: str, *, level: int = logging.WARNING, name: str = "a.b", error: object = None) -> logging.LogRecord:
    return logging.LogRecord(name, level, "/x/y.py", 7, message, None, error, "function")  # type: ignore[arg-type]


def test_a_record_survives_the_crossing() -> None:
    sent = record("words \u20ac \udcff\nand more", level=35)
    word = decode(encode(sent, "engine 0", dropped=3))
    made = word.record()
    assert (made.name, made.levelno, made.levelname, made.processName) == ("a.b", 35, "Level 35", "engine 0")
    assert made.getMessage() == "words \u20ac \\udcff\nand more"
    assert (made.pathname, made.filename, made.module, made.lineno) == ("/x/y.py", "y.py", "y", 7)
    assert (made.created, made.process, word.dropped) == (sent.created, sent.process, 3)


def test_a_message_with_per_cent_signs_is_not_formatted_again() -> None:
    assert decode(encode(record("100 %s %d"), "x")).record().getMessage() == "100 %s %d"


def test_a_traceback_comes_as_text() -> None:
    try:
        raise ValueError("the cause")
    except ValueError:
        made = decode(encode(record("failed", error=sys.exc_info()), "x")).record()
    assert logging.Formatter("%(message)s").format(made).splitlines()[-1] == "ValueError: the cause"


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\udcff" * 1_000_000, "\u20ac" * 1_000_000, "\0" * 1_000_000])
def test_what_is_too_long_is_cut(text: str) -> None:
    try:
        raise ValueError(text)
    except ValueError:
        data = encode(record(text, name=text, error=sys.exc_info()), text)
    assert len(data) <= MAX_RECORD_BYTES
    assert " [...] " in decode(data).message


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(b"\x00junk")


def test_thresholds_follow_the_nearest_logger() -> None:
    thresholds = Thresholds(root=logging.WARNING, disabled=0, loggers={"a": logging.DEBUG, "a.b.c": logging.ERROR})
    levels = {"": 30, "z": 30, "a": 10, "a.b": 10, "a.b.c": 40, "a.b.c.d": 40, "ab": 30}
    assert {name: thresholds.of(name) for name in levels} == levels
    assert msgspec.structs.replace(thresholds, disabled=logging.CRITICAL).of("a") > logging.CRITICAL


def test_thresholds_of_this_process() -> None:
    logger = logging.getLogger("muro_test.thresholds")
    logger.setLevel(17)
    try:
        now = Thresholds.now()
        assert now.of("muro_test.thresholds.below") == 17
        assert now.root == logging.getLogger().level
    finally:
        logger.setLevel(logging.NOTSET)
