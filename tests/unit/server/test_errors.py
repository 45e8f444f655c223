"""errors.py: every error has a status and a body in OpenAI's shape, and tells no more than it should."""

from __future__ import annotations

import inspect
from http.client import HTTPResponse
from io import BytesIO

import msgspec
import pytest
from openai.types.shared import ErrorObject

from muro import errors
from muro.launch.death import Death
from muro.server.errors import raw, reply, reply_to
from muro.wire.failure import FailureRecord

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.MuroError) and kind is not errors.MuroError
]


def make(kind: type[errors.MuroError]) -> errors.MuroError:
    return kind("a model", "text") if kind is errors.MissingExtraError else kind("what and why")


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_an_answer(kind: type[errors.MuroError]) -> None:
    err = make(kind)
    answer = reply_to(err)
    shown = ErrorObject.model_validate(msgspec.to_builtins(answer.body)["error"], strict=True)
    assert (answer.status, shown.code, shown.message) == (kind.status, kind.code, err.message)
    assert shown.type.endswith("_error")
    assert (shown.type == "server_error") == (answer.status >= 500)


def test_the_wrong_option_is_named() -> None:
    answer = reply_to(errors.UnsupportedOptionError("no tools here", param="tools"))
    assert msgspec.to_builtins(answer.body) == {
        "error": {
            "message": "no tools here",
            "type": "invalid_request_error",
            "param": "tools",
            "code": "unsupported_option",
        }
    }
    assert answer.status == 400


def test_overload_says_when_to_come_back() -> None:
    assert reply_to(errors.OverloadedError("full", retry_after=1.2)).headers == {"retry-after": "2"}
    assert reply_to(errors.OverloadedError("full", retry_after=0)).headers == {"retry-after": "1"}
    assert reply_to(errors.InternalError("x")).headers == {}


def test_foreign_errors_tell_nothing() -> None:
    answer = reply_to(ValueError("secret path"))
    assert answer.status == 500
    assert "secret" not in msgspec.json.encode(answer.body).decode()
    assert answer.body.error.code == "internal"


def test_log_lines_of_an_engine_are_not_shown() -> None:
    failure = FailureRecord(phase="serving", kind="OSError", message="no gpu")
    death = Death(
        name="engine 0", pid=7, status=10, phase="serving", seconds=1.0, failure=failure, log_tail="secret\nlines"
    )
    err = death.dead_error(rank=0, generation=0)
    assert "secret" in err.message
    answer = reply_to(err)
    assert answer.status == 503
    assert "secret" not in msgspec.json.encode(answer.body).decode()
    assert answer.body.error.message.endswith("Cause: OSError: no gpu. Its last lines are in the server's log")


def test_nor_if_the_death_is_told_within_another_error() -> None:
    failure = FailureRecord(phase="serving", kind="OSError", message="no gpu")
    death = Death(
        name="engine 0", pid=7, status=10, phase="serving", seconds=1.0, failure=failure, log_tail="secret\nlines"
    )
    err = errors.RequestFailedError(f"it is not tried again. {death.dead_error(rank=0, generation=0).message}")
    message = reply_to(err).body.error.message
    assert "no gpu" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("status", "kind"), [(404, "invalid_request_error"), (405, "invalid_request_error"), (502, "server_error")]
)
def test_errors_of_the_http_layer(status: int, kind: str) -> None:
    assert reply(status, "no").body.error.type == kind


def test_a_whole_answer_as_it_travels() -> None:
    answer = raw(reply_to(errors.OverloadedError("full", retry_after=3)), "mine")

    class Wire:
        def makefile(self, mode: str) -> BytesIO:
            return BytesIO(answer + b"HTTP/1.1 200 OK")

    parsed = HTTPResponse(Wire())  # type: ignore[arg-type]
    parsed.begin()
    assert (parsed.status, parsed.getheader("retry-after")) == (503, "3")
    assert msgspec.json.decode(parsed.read())["error"]["code"] == "overloaded"


def test_an_option_that_an_engine_names_first_is_the_param() -> None:
    def param(message: str) -> str | None:
        return reply_to(errors.InvalidRequestError(message)).body.error.param

    assert param("logprobs is 99; it must be in 0 ... 20") == "logprobs"
    assert param("the prompt is empty") is None
