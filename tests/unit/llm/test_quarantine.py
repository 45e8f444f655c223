"""quarantine.py: whoever kills engines is found, whoever only stood beside is not. Random walks: see the machine."""

from __future__ import annotations

from muro.errors import EngineDeadError
from muro.llm.quarantine import ALONE, PATIENCE, PROOF, SURE, Quarantine

CRASH = EngineDeadError("it was killed by SIGSEGV", rank=0, pid=1, exit_status=-11)
KILLED = EngineDeadError("it was killed by SIGKILL", rank=0, pid=1, exit_status=-9)


class Requests:
    """Some requests before one engine that the test kills."""

    def __init__(self, *keys: str) -> None:
        self.quarantine = Quarantine()
        self.generation = 0
        self.running: list[str] = []
        for key in keys:
            self.quarantine.enter(key)
            self.quarantine.ask(key)

    def start(self) -> list[str]:
        """Send whoever may run; gives all that run now."""
        for key in [key for key in self.quarantine._cases if key not in self.running]:
            if self.quarantine.may_run(key):
                self.quarantine.began(key, (0, self.generation))
                self.running.append(key)
        return self.running

    def die(self, death: EngineDeadError = CRASH) -> list[str]:
        """Gives who was convicted; all others want to run again."""
        lost, self.running = self.running, []
        for key in lost:
            self.quarantine.died((0, self.generation), death)
            self.quarantine.ask(key)
        self.generation += 1
        return [key for key in lost if self.quarantine.verdict(key)]

    def token(self, key: str) -> bool:
        return self.quarantine.delivered(key, 1)


def test_one_death_changes_nothing() -> None:
    requests = Requests("a", "b")
    requests.start()
    assert requests.die() == []
    assert requests.start() == ["a", "b"]


def tried_alone(requests: Requests, names: str) -> None:
    """Each of these passes a trial of its own, and ends."""
    for name in names:
        assert requests.start() == [name]
        assert requests.token(name)
        requests.running.remove(name)
        requests.quarantine.leave(name)


def test_after_two_deaths_they_are_tried_until_they_have_a_token_ever_more_at_once() -> None:
    requests = Requests(*"abcdefghij")
    for _ in range(2):
        requests.start()
        requests.die()
    requests.quarantine.enter("new")
    tried_alone(requests, "abcd"[:ALONE])
    assert requests.start() == ["e", "f"]
    assert requests.token("f")
    assert not requests.token("f")
    assert requests.start() == ["e", "f"]
    assert requests.token("e")
    assert requests.start() == list("efghij")
    assert all(requests.token(key) for key in "ghij")
    assert requests.start() == [*"efghij", "new"]
    assert not any(requests.quarantine.verdict(key) for key in "efghij")


def test_after_a_death_of_several_on_trial_it_is_one_at_a_time() -> None:
    requests = Requests(*"abcdefghij")
    for _ in range(2):
        requests.start()
        requests.die()
    tried_alone(requests, "abcd"[:ALONE])
    assert requests.start() == ["e", "f"]
    assert requests.die() == []
    assert requests.start() == ["e"], "those who were in most crashes come first"
    for number in range(PROOF):
        assert requests.token("e") == (number == PROOF - 1), "after three crashes more proof is wanted"
    requests.running.remove("e")
    requests.quarantine.leave("e")
    assert requests.start() == ["f"]
    assert requests.die() == []
    assert requests.start() == ["f"]
    assert requests.die() == ["f"], "its second crash alone"
    requests.quarantine.leave("f")
    for key in "ghij":
        assert requests.start()[-1] == key
        assert requests.token(key)


def test_harm_that_is_done_behind_a_token_is_found() -> None:
    """As a failure of an accelerator is, which is told a step late."""
    requests = Requests("innocent", "late", "young")
    for _ in range(3):
        assert requests.start() == ["innocent", "late", "young"]
        for key in ["innocent", "late"]:
            requests.token(key)
        requests.running.remove("young")
        requests.quarantine.leave("young")
        requests.quarantine.enter("young")
        assert requests.die() == []
    assert requests.start() == ["innocent"]
    for number in range(PROOF):
        assert requests.token("innocent") == (number == PROOF - 1)
    assert requests.start() == ["innocent", "late"]
    requests.token("late")
    assert requests.die() == [], "nobody was alone"
    assert requests.start() == ["late"], "the other one is not suspect any more"
    requests.token("late")
    assert requests.die() == ["late"]


def test_a_death_in_its_trial_convicts() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die()
    assert requests.start() == ["a"]
    assert requests.die() == ["a"]
    verdict = requests.quarantine.verdict("a")
    assert verdict is not None and verdict.__cause__ is CRASH
    assert "running when its engine died, 3 times" in verdict.message and "SIGSEGV" in verdict.message
    assert "engine 0 generation 2), and nothing else explains it" in verdict.message
    requests.quarantine.leave("a")
    assert requests.start() == ["b"]
    assert requests.die() == ["b"], "b died three times, the last time alone"


def test_the_second_death_of_a_request_that_is_always_alone_convicts() -> None:
    requests = Requests("a")
    requests.start()
    assert requests.die() == []
    requests.start()
    assert requests.die() == ["a"]


def test_who_ended_before_the_crash_may_have_done_it() -> None:
    """A fault that acts late: its request has had its last token, and another one is alone when the engine dies."""
    requests = Requests("late", "innocent")
    for _ in range(2):
        requests.start()
        assert requests.die() == []
    assert requests.start() == ["late"] and requests.token("late")
    assert requests.start() == ["late", "innocent"]
    requests.running.remove("late")
    requests.quarantine.leave("late")
    assert requests.die() == []
    assert requests.start() == ["innocent"]
    assert requests.die() == ["innocent"]  # if it happens again where nobody else has been


def test_tokens_do_not_excuse_a_second_crash_alone() -> None:
    requests = Requests("a")
    for convicted in ([], ["a"]):
        requests.start()
        requests.token("a")
        assert requests.die() == convicted


def test_a_signal_that_anybody_may_have_sent_convicts_only_after_so_many_in_a_row() -> None:
    requests = Requests("a")
    for number in range(1, SURE + 1):
        requests.start()
        assert requests.die(KILLED) == (["a"] if number == SURE else [])


def test_whoever_has_gone_on_after_deaths_is_given_more_time() -> None:
    requests = Requests("a")
    recoveries = 4
    for _ in range(1 + recoveries):
        requests.start()
        requests.token("a")
        assert requests.die(KILLED) == []
    for number in range(1, PATIENCE + recoveries + 1):
        requests.start()
        assert requests.die(KILLED) == (["a"] if number == PATIENCE + recoveries else [])


def test_whoever_has_got_least_is_tried_first() -> None:
    requests = Requests("old", "new")
    requests.start()
    requests.token("old")
    requests.die()
    requests.start()
    requests.die()
    requests.quarantine.enter("newest")
    assert requests.start() == ["new"]


def test_a_signal_convicts_only_if_all_others_live_without_the_convict() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die(KILLED)
    assert requests.start() == ["a"]
    assert requests.die(KILLED) == []
    assert requests.start() == ["b"], "who was killed in its trial comes last"
    requests.token("b")
    assert requests.start() == ["b", "a"]
    assert requests.die(KILLED) == [], "a was the only one without a token again"
    assert requests.start() == ["a"]
    assert requests.die(KILLED) == ["a"]


def test_a_death_without_it_excuses_a_request() -> None:
    requests = Requests("a", "b")
    for _ in range(2):
        requests.start()
        requests.die(KILLED)
    for _ in range(5):
        assert requests.start() == ["a"]
        assert requests.die(KILLED) == []
        assert requests.start() == ["b"]
        assert requests.die(KILLED) == []


def test_newcomers_wait_for_the_trial() -> None:
    requests = Requests("a")
    requests.start()
    requests.die(KILLED)
    requests.start()
    requests.die(KILLED)
    requests.quarantine.enter("b")
    assert not requests.quarantine.may_run("b")
    assert requests.start() == ["a"]
    assert not requests.quarantine.may_run("b")
    requests.quarantine.leave("a")
    assert requests.quarantine.may_run("b")


def test_a_suspect_that_never_asks_holds_nobody_up() -> None:
    """Its reader may be slow, and a request goes on when its reader asks for more."""
    requests = Requests("a", "b")
    requests.start()
    requests.die()
    requests.start()
    requests.running = []
    requests.quarantine.died((0, 1), CRASH)
    requests.quarantine.ask("a")
    assert requests.quarantine.may_run("a")
    assert requests.token("a")
    requests.quarantine.enter("c")
    assert requests.quarantine.may_run("c")
    requests.quarantine.ask("b")
    assert not requests.quarantine.may_run("c")


def test_tokens_that_are_read_after_the_death_leave_it_a_strike() -> None:
    requests = Requests("a", "b")
    requests.start()
    requests.die()
    requests.start()
    requests.die()
    requests.token("a")
    assert requests.quarantine._cases["a"].strikes == 1


def test_a_death_is_told_by_everybody_and_counts_once() -> None:
    requests = Requests("a", "b")
    requests.start()
    for _ in range(5):
        requests.quarantine.died((0, 0), CRASH)
    assert requests.start() == ["a", "b"]


def test_unknown_requests_may_leave() -> None:
    Quarantine().leave("nobody")
