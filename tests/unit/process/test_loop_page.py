"""What the busy loop says on the progress page, and that it says so before it does it."""

from typing import Any

from muro.engine.events import Abort, Call
from muro.engine.interface import operation
from muro.ids import ClientIndex
from muro.wire.output import FinishReason
from tests.support.looping import Engine, Rig

C0 = ClientIndex(0)
ABORT, LENGTH = FinishReason.ABORT, FinishReason.LENGTH


def test_the_page_shows_steps_and_tokens(rig: Rig) -> None:
    rig.add("a", max_tokens=2)
    rig.add("b", max_tokens=3)
    rig.engine.during = lambda step: seen.append((rig.page.read().stepping, rig.page.read().running))
    seen: list[tuple[bool, int]] = []
    rig.run_until_asleep()
    progress = rig.page.read()
    assert seen == [(True, 0), (True, 2), (True, 1)]
    assert (progress.steps_started, progress.steps_ended, progress.tokens_out, progress.running) == (3, 3, 5, 0)


def test_the_page_names_what_is_handled_before_it_is_handled(rig: Rig) -> None:
    seen: list[tuple[str, int]] = []

    class Watched(Engine):
        def add_request(self, request_id: str, request: Any) -> None:
            self.look()
            super().add_request(request_id, request)

        @operation
        def look(self) -> None:
            progress = rig.page.read()
            seen.append((progress.activity, progress.events_taken))

    rig = Rig(rig.page, engine=Watched())
    rig.add("a", max_tokens=1)
    rig.inbox.put(Call(C0, 1, "look", []))
    rig.inbox.wake()
    rig.run_until_asleep()
    assert seen == [("a new request", 1), ("call look", 2)]
    progress = rig.page.read()
    assert progress.idle and progress.events_taken == 2, "a wake-up is nobody's input"


def test_the_page_shows_why_nothing_comes_out(rig: Rig) -> None:
    rig.page.set_phase("serving")
    reasons = {2: "grammar", 3: "grammar"}
    seen: list[str] = []

    def during(step: int) -> None:
        seen.append(rig.page.read().phase)
        rig.engine.stalled = 1 if step in reasons else 0
        rig.engine.why = reasons.get(step)

    rig.engine.during = during
    rig.add("a", max_tokens=3)
    rig.run_until_asleep()
    assert seen == ["serving", "serving", "grammar", "grammar", "serving"]
    assert rig.page.read().phase == "serving"


def test_the_page_shows_a_pause_and_its_end(rig: Rig) -> None:
    rig.page.set_phase("serving")
    rig.add("a", max_tokens=3)
    rig.engine.during = lambda step: (
        rig.inbox.put(Call(C0, 1, "pause_scheduler", ["keep", False])) if step == 1 else None
    )
    rig.run_until_asleep()
    paused = rig.page.read()
    assert (paused.phase, paused.idle, paused.running, paused.waiting) == ("paused", True, 1, 0)
    rig.add("b", max_tokens=1)
    rig.run_until_asleep()
    assert rig.page.read().waiting == 1
    phases: list[str] = []
    rig.engine.during = lambda step: phases.append(rig.page.read().phase)
    rig.inbox.put(Call(C0, 2, "resume_scheduler", []))
    rig.run_until_asleep()
    assert phases == ["serving"] * 2
    assert rig.finishes() == {"a": [LENGTH], "b": [LENGTH]}
    ended = rig.page.read()
    assert (ended.phase, ended.running, ended.waiting) == ("serving", 0, 0)


def test_the_page_shows_what_counts_as_progress(rig: Rig) -> None:
    rig.add("a", max_tokens=2)
    rig.engine.prompt_tokens = 7
    rig.run_until_asleep()
    progress = rig.page.read()
    assert (progress.tokens_out, progress.yielded) == (2, 2 + 2 * 7 + 1), "tokens, prompt tokens, an end"


def test_the_page_forgets_requests_that_were_aborted_while_nothing_was_stepped(rig: Rig) -> None:
    rig.add("a", max_tokens=9)
    rig.engine.during = lambda step: rig.inbox.put(Abort(C0, ["a"]))
    rig.run_until_asleep()
    assert rig.page.read().running == 0
