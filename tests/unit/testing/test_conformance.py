"""The suite passes the engines that keep the contract, and fails those that break it, each in its own case."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from muro.engine.interface import EngineInfo, StepResult, TakeAborts, operation
from muro.engines.echo import EchoEngine
from muro.errors import ConfigError
from muro.testing.__main__ import main
from muro.testing.conformance import CASES, ContractError, Result, check_case, check_engine
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

README = Path(__file__).parents[3] / "README.md"


@pytest.mark.parametrize(
    ("engine", "options"), [("echo", {}), ("paced", {"step_ms": 0.1}), ("paced", {"burn": True}), ("faulty", {})]
)
@pytest.mark.parametrize("reuse", [False, True])
def test_engines_that_pass(engine: str, options: dict[str, Any], reuse: bool) -> None:
    report = check_engine(engine, options=options, reuse=reuse)
    assert report.passed, str(report)
    assert [result.case for result in report.results] == CASES


class OddDtype(EchoEngine):
    def info(self) -> EngineInfo:
        return EngineInfo(dtype="fp32")


class TwoFinals(EchoEngine):
    """Says it twice; a host hides the second time, because it no longer knows the id."""

    def __init__(self) -> None:
        super().__init__()
        self.again: list[EngineCoreOutput] = []

    def step(self, take_aborts: TakeAborts) -> StepResult:
        again, self.again = self.again, []
        result = super().step(take_aborts)
        self.again = [o for o in result.outputs if o.finish_reason is not None and o.request_id == "one_final_output"]
        return StepResult(again + result.outputs)

    def has_work(self) -> bool:
        return super().has_work() or bool(self.again)


class Generous(EchoEngine):
    def token_limit(self, request: EngineCoreRequest) -> int:
        return super().token_limit(request) + 1


class Babbling(EchoEngine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        result = super().step(take_aborts)
        return StepResult([*result.outputs, EngineCoreOutput("nobody", [1])] if result.outputs else [])


class Restless(EchoEngine):
    def has_work(self) -> bool:
        return True


class Strict(EchoEngine):
    """Aborts only what it holds."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            del self._left[request_id]


class LateBreath(EchoEngine):
    """One more output after an abort between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted: list[str] = []

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        ids = [i for i in request_ids if i in self._left]
        self.aborted += ids
        super().abort_requests(ids)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        aborted, self.aborted = self.aborted, []
        result = super().step(take_aborts)
        self.aborted = []
        return StepResult(result.outputs + [EngineCoreOutput(i, [1]) for i in aborted])


class Deaf(EchoEngine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        return super().step(tuple)


class Mistaken(EchoEngine):
    """Takes requests with the same prompt for one."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[str, str] = {}

    def add_request(self, request_id: str, request: EngineCoreRequest) -> None:
        key = str(request.prompt_token_ids)
        if self.prompts.get(key) in self._left:
            raise ValueError("this prompt is already running")
        self.prompts[key] = request_id
        super().add_request(request_id, request)


class Unforgetting(EchoEngine):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def add_request(self, request_id: str, request: EngineCoreRequest) -> None:
        if request_id in self.seen:
            raise ValueError("had that already")
        self.seen.add(request_id)
        super().add_request(request_id, request)


class Fragile(EchoEngine):
    """A token beyond the vocabulary takes it down in the forward pass."""

    def step(self, take_aborts: TakeAborts) -> StepResult:
        if any(token >= 1000 for left in self._left.values() for token in left):
            raise IndexError("index out of range in self")
        return super().step(take_aborts)


class Hasty(EchoEngine):
    """Starts in preprocess."""

    def preprocess(self, request: EngineCoreRequest) -> EngineCoreRequest:
        self.add_request(request.request_id, request)
        return request


class Miscounting(EchoEngine):
    """Its gauges never come down."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0

    def stats(self) -> SchedulerStats:
        self.peak = max(self.peak, len(self._left))
        return SchedulerStats(num_running_reqs=self.peak)


class Unsendable(EchoEngine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        result = super().step(take_aborts)
        for output in result.outputs:
            output.kv_transfer_params = {"awkward": object()}
        return result


class Busybody(EchoEngine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        if not self._left:
            raise RuntimeError("an empty batch")
        return super().step(take_aborts)


class Crowded(EchoEngine):
    """Loses what does not fit."""

    def add_request(self, request_id: str, request: EngineCoreRequest) -> None:
        if len(self._left) < 8:
            super().add_request(request_id, request)


class Chatty(EchoEngine):
    @operation
    def secrets(self) -> object:
        return object()


class WrongType(EchoEngine):
    @operation
    def is_sleeping(self) -> str:
        return "no"


class Clinging(EchoEngine):
    def shutdown(self) -> None:
        if self._left:
            raise RuntimeError("requests are running")


BROKEN = {
    OddDtype: "info",
    TwoFinals: "one_final_output",
    Generous: "max_tokens",
    Babbling: "ids_echoed",
    Restless: "has_work",
    Strict: "abort_is_idempotent",
    LateBreath: "silent_after_abort",
    Deaf: "takes_aborts",
    Mistaken: "same_prompts",
    Unforgetting: "id_comes_again",
    Fragile: "odd_requests",
    Hasty: "preprocess_apart",
    Miscounting: "stats",
    Unsendable: "encodable",
    Busybody: "idle",
    Crowded: "many_requests",
    Chatty: "operations",
    WrongType: "operations",
    Clinging: "shutdown",
}


def test_there_is_a_broken_engine_for_every_case() -> None:
    assert set(BROKEN.values()) == {case.name for case in CASES}


@pytest.mark.parametrize("engine", BROKEN, ids=lambda engine: engine.__name__)
def test_a_broken_engine_fails_its_case_alone(engine: type[EchoEngine]) -> None:
    report = check_engine(engine)
    assert [failure.case.name for failure in report.failures] == [BROKEN[engine]], str(report)


@pytest.mark.parametrize("engine", [Generous, Fragile, Unforgetting])
def test_a_failure_does_not_spoil_the_cases_after_it(engine: type[EchoEngine]) -> None:
    report = check_engine(engine, reuse=True)
    assert [failure.case.name for failure in report.failures] == [BROKEN[engine]], str(report)


def test_a_failure_says_what_is_demanded_and_where() -> None:
    message = check_engine(Generous).failures[0].message
    assert "2 tokens came for max_tokens=1" in message
    assert "no request gets more tokens than max_tokens" in message.lower()
    assert "muro.engine.interface.Engine.token_limit" in message


def test_places_exist() -> None:
    import muro.engine.interface as interface

    for case in CASES:
        found: Any = interface
        for name in case.where.removeprefix("muro.engine.interface.").split("."):
            found = getattr(found, name)
        assert case.demand.endswith(".")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_form_for_test_files(case: Any) -> None:
    check_case(case, EchoEngine)


def test_the_form_for_test_files_fails() -> None:
    case = next(case for case in CASES if case.name == "takes_aborts")
    with pytest.raises(ContractError, match="takes_aborts"):
        check_case(case, Deaf)


class Raising(EchoEngine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        raise RuntimeError("no device")


def test_an_exception_in_a_step_is_told_as_such() -> None:
    failures: list[Result] = check_engine(Raising).failures
    assert "it raised RuntimeError: no device" in failures[0].message


def test_an_engine_that_never_ends_a_request_is_told_so() -> None:
    class Endless(EchoEngine):
        def step(self, take_aborts: TakeAborts) -> StepResult:
            return StepResult([EngineCoreOutput(i, [1]) for i in self._left])

    case = next(case for case in CASES if case.name == "one_final_output")
    with pytest.raises(ContractError, match="'one_final_output' does not end: 500 steps"):
        check_case(case, Endless)


def test_a_wrong_option_is_no_failed_case() -> None:
    with pytest.raises(ConfigError, match="speed"):
        check_engine("paced", options={"speed": 1})


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paced", "--option", "step_ms=0.1", "--case", "info", "--case", "idle", "--reuse"]) == 0
    assert capsys.readouterr().out.endswith("paced: 2 of 2 cases passed\n")
    assert main([f"{__file__}:OddDtype", "--case", "info"]) == 1
    assert "dtype is 'fp32'" in capsys.readouterr().out
    assert main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["echo", "--option", "novalue"])


class Broken(EchoEngine):
    def __init__(self) -> None:
        raise ValueError("no such device: gpu7")


class BreaksLater(EchoEngine):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).built += 1
        if self.built == 2:
            raise OSError("out of memory")


def test_what_an_engine_raises_while_it_is_built_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "unreadable.py").write_text("def x(:")
    (tmp_path / "incomplete.py").write_text("import nothing_there")
    for engine, words in {
        f"{__file__}:Broken": r"could not be built: ValueError: no such device: gpu7\n  raised in .*, line \d+\n",
        f"{tmp_path}/unreadable.py:X": r"could not be built: SyntaxError: .*unreadable.py, line 1\)\n",
        f"{tmp_path}/incomplete.py:X": r"could not be built: ModuleNotFoundError: .*nothing_there'\n  raised in .*\n",
    }.items():
        assert main([engine, "--case", "info"]) == 2
        said = capsys.readouterr()
        assert re.search(words + r"\Z", said.err)
        assert "Traceback" not in said.err
        assert said.out == ""


def test_an_engine_that_cannot_be_built_again_fails_that_case_alone() -> None:
    report = check_engine(BreaksLater, cases=CASES[:3])
    assert [result.passed for result in report.results] == [True, False, True]
    assert "out of memory" in str(report)


def readme_example() -> str:
    found = re.search(r"<!-- example: engine -->.*?```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, "the README shows no engine"
    return found[1]


def test_the_engine_in_the_readme_is_the_tutorial() -> None:
    source = Path(sys.modules[EchoEngine.__module__].__file__ or "").read_text()
    body = source[source.index("class EchoEngine") :].replace("EchoEngine", "MyEngine")
    assert re.sub(r"  # .*", "", body) == re.sub(r"  # .*", "", readme_example()[readme_example().index("class ") :])
    lines = [line for line in body.splitlines() if line.strip()]
    assert len(lines) <= 16, "fifteen lines below the class statement"


def test_the_engine_in_the_readme_passes(tmp_path: Path) -> None:
    (tmp_path / "my_engine.py").write_text(readme_example())
    command = [sys.executable, "-m", "muro.testing", "my_engine.py:MyEngine"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(CASES)} of {len(CASES)} cases passed" in result.stdout
