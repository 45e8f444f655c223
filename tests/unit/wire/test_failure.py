import signal

import pytest

from muro import errors
from muro.errors import (
    CallFailedError,
    InvalidRequestError,
    MuroError,
    OverloadedError,
    RemoteProtocolError,
    RequestAbortedError,
    RequestError,
    RequestFailedError,
    UnknownOperationError,
)
from muro.wire.failure import (
    MAX_RECORD_BYTES,
    SHUTTING_DOWN,
    ExitCode,
    FailureRecord,
    call_error,
    call_failure_text,
    describe_exit,
    error_from_wire,
    error_to_wire,
)
from muro.wire.output import FinishReason, OutputError


def all_errors() -> list[type[MuroError]]:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MuroError)]
    return [cls for cls in classes if cls not in (MuroError, errors.MissingExtraError)]


@pytest.mark.parametrize("cls", all_errors(), ids=lambda cls: cls.__name__)
def test_every_error_crosses_the_wire_as_the_end_of_its_request(cls: type[MuroError]) -> None:
    wire = error_to_wire(cls("what happened"))
    back = error_from_wire(wire, request_id="r")
    assert isinstance(back, RequestError)
    assert back.request_id == "r"
    assert "what happened" in back.message
    assert 400 <= back.status < 600
    if issubclass(cls, RequestError) and cls is not RequestError:
        assert type(back) is cls
    else:
        assert type(back) is RequestFailedError
        assert cls.code in back.message


def test_codes_are_unique_and_wrong_requests_travel_under_the_protocols_own_word() -> None:
    codes = [cls.code for cls in all_errors()]
    assert len(codes) == len(set(codes))
    assert error_to_wire(InvalidRequestError("no")).code == "validation_error"
    assert error_to_wire(OverloadedError("full")).retryable
    assert not error_to_wire(InvalidRequestError("no")).retryable


def test_foreign_exceptions_and_foreign_codes() -> None:
    assert error_to_wire(KeyError("x")) == OutputError("internal", "KeyError: 'x'")
    assert error_to_wire(RuntimeError()).message == "RuntimeError: RuntimeError"
    assert type(error_from_wire(OutputError("engine_paused", "later", True))) is RequestAbortedError
    assert type(error_from_wire(OutputError("new_in_0.40", "x", True))) is OverloadedError
    assert error_from_wire(OutputError("new_in_0.40", "x")).message == "new_in_0.40: x"


def test_releases_that_give_no_reason() -> None:
    assert type(error_from_wire(None)) is RequestFailedError
    assert type(error_from_wire(None, FinishReason.ABORT)) is RequestAbortedError


def test_messages_are_bounded_and_encodable() -> None:
    wire = error_to_wire(ValueError("x" * 100_000 + "\ud800"))
    assert len(wire.message) < 10_000
    error_to_wire(ValueError("\ud800")).message.encode()


@pytest.mark.parametrize("error", [CallFailedError("it broke"), RuntimeError("it broke")])
def test_failed_calls(error: Exception) -> None:
    text = call_failure_text("sleep", error)
    assert text == "Call to sleep method failed: it broke"
    back = call_error("sleep", text)
    assert type(back) is CallFailedError
    assert (back.message, back.method) == (text, "sleep")


@pytest.mark.parametrize(
    "text",
    [
        call_failure_text("fly", UnknownOperationError(method="fly")),
        "Call to fly method failed: 'EngineCoreProc' object has no attribute 'fly'",
    ],
)
def test_unknown_operations_ours_and_vllms(text: str) -> None:
    assert type(call_error("fly", text)) is UnknownOperationError
    assert type(call_error("sleep", text)) is CallFailedError


def test_calls_during_shutdown() -> None:
    assert type(call_error("sleep", SHUTTING_DOWN)) is CallFailedError


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "it has not ended"),
        (0, "exit code 0 (it was asked to stop)"),
        (1, "exit code 1"),
        (10, "exit code 10 (the engine failed)"),
        (143, "exit code 143 (it was forced by the fifth stop signal)"),
        (-signal.SIGKILL, "killed by SIGKILL (the kernel kills so when memory runs out: see dmesg)"),
        (-signal.SIGSEGV, "killed by SIGSEGV (a fault in native code)"),
        (-signal.SIGUSR1, "killed by SIGUSR1"),
        (-40, "killed by signal 40"),
    ],
)
def test_exit_statuses_in_words(status: int | None, words: str) -> None:
    assert describe_exit(status) == words


def test_every_exit_code_has_words_of_its_own() -> None:
    words = {describe_exit(code) for code in ExitCode}
    assert len(words) == len(ExitCode)
    assert all("(" in text for text in words)


def test_a_failure_record_survives_the_crossing() -> None:
    try:
        raise RemoteProtocolError("bad bytes")
    except RemoteProtocolError as error:
        record = FailureRecord.of("loading", error)
    back = FailureRecord.decode(record.encode())
    assert back == record
    assert (back.phase, back.kind, back.message, back.code) == (
        "loading",
        "RemoteProtocolError",
        "bad bytes",
        "remote_protocol",
    )
    assert "test_a_failure_record" in back.traceback


@pytest.mark.parametrize("filling", ["x", "\x00", "é", "\U0001f600", '"'])
def test_a_huge_record_keeps_the_end_of_its_traceback(filling: str) -> None:
    record = FailureRecord("p" * 999, "K", filling * 100_000, filling * 100_000 + "the end")
    data = record.encode()
    assert len(data) <= MAX_RECORD_BYTES
    assert FailureRecord.decode(data).traceback.endswith("the end")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b" " * (MAX_RECORD_BYTES + 1)])
def test_half_a_record_is_none(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="failure record"):
        FailureRecord.decode(data)


def test_an_exception_that_fails_to_tell_what_it_is_can_be_told_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    assert error_to_wire(Mute()).message.startswith("Mute: ")
    assert "sleep" in call_failure_text("sleep", Mute())
    record = FailureRecord.decode(FailureRecord.of("serving", Mute()).encode())
    assert record.kind == "Mute"
    assert record.message
