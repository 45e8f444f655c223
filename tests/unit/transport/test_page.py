import os
import tempfile
import threading
import time

import pytest

from muro.errors import InternalError
from muro.transport.page import ProgressPage
from muro.wire.progress import ENDED, PAGE_SIZE, Progress


def both_ends(generation: int = 0) -> tuple[ProgressPage, ProgressPage]:
    reader = ProgressPage.create(generation=generation)
    return reader, ProgressPage.attach(os.dup(reader.fileno()))


def test_what_is_written_is_read() -> None:
    reader, writer = both_ends(generation=3)
    before = time.monotonic_ns()
    writer.set_phase("loading", 12.5)
    writer.step_started()
    writer.step_started()
    writer.step_ended(tokens=5, running=2, waiting=1)
    writer.step_ended(tokens=7, running=4, waiting=0)
    writer.step_started()
    writer.frame_dropped()
    after = time.monotonic_ns()
    found = reader.read()
    assert (found.pid, found.generation, found.phase, found.percent) == (os.getpid(), 3, "loading", 12.5)
    assert (found.steps_started, found.steps_ended, found.tokens_out) == (3, 2, 12)
    assert (found.running, found.waiting, found.dropped_frames) == (4, 0, 1)
    assert before <= found.phase_since_ns <= found.step_ended_ns <= found.step_started_ns <= after
    assert found.stepping
    writer.close()
    reader.close()


def test_what_the_loop_does_between_steps() -> None:
    reader, writer = both_ends()
    writer.step_started()
    writer.step_ended(tokens=2, running=3, waiting=0, achieved=5)
    writer.turns_to(b"add", 1)
    writer.turns_to(b"wake-up", 0)
    found = reader.read()
    assert (found.activity, found.events_taken, found.idle) == ("wake-up", 1, False)
    assert (found.tokens_out, found.yielded, found.running) == (2, 7, 3)
    assert found.activity_since_ns >= found.step_ended_ns > 0
    writer.idles(running=0, waiting=4)
    idle = reader.read()
    assert idle.idle and (idle.running, idle.waiting, idle.events_taken) == (0, 4, 1)
    assert (idle.steps_ended, idle.step_ended_ns, idle.yielded) == (1, found.step_ended_ns, 7)
    writer.close()
    reader.close()


def test_what_the_input_thread_has_read() -> None:
    reader, writer = both_ends()
    writer.message_begun()
    writer.message_done(queued=1)
    writer.message_begun()
    writer.message_done(queued=1)
    writer.message_begun()
    found = reader.read()
    assert (found.messages_begun, found.messages_done, found.events_queued) == (3, 2, 1)
    writer.clients_ignored(1)
    assert reader.read().ignored_clients == 1
    writer.close()
    reader.close()


def test_an_untouched_page_says_nothing_but_its_generation() -> None:
    page = ProgressPage.create(generation=7)
    assert page.read() == Progress(generation=7)
    page.close()


def test_a_long_phase_is_cut_between_characters() -> None:
    reader, writer = both_ends()
    writer.set_phase("wärmt auf " * 10)
    phase = reader.read().phase
    assert "wärmt auf wärmt auf wärmt auf ".startswith(phase)
    assert 30 <= len(phase.encode()) <= 32
    writer.close()
    reader.close()


def test_readings_are_whole_while_two_threads_write() -> None:
    """Steps end with tokens = 3, running = n, waiting = n; phases carry their percentage in their text."""
    reader, writer = both_ends()
    stop = threading.Event()

    def step() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.step_started()
            writer.step_ended(tokens=3, running=number, waiting=number)

    def load() -> None:
        percent = 0
        while not stop.is_set():
            percent = (percent + 1) % 100
            writer.set_phase(f"{percent}" * 10, percent)

    threads = [threading.Thread(target=step), threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3000):
            found = reader.read()
            assert found.tokens_out == 3 * found.steps_ended
            assert found.running == found.waiting == found.steps_ended
            assert found.phase in ("", f"{found.percent:.0f}" * 10)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert reader.read().steps_ended > 0
    writer.close()
    reader.close()


def test_a_writer_that_stopped_half_way_leaves_the_last_good_reading() -> None:
    reader, writer = both_ends()
    writer.step_started()
    writer.step_ended(1, 1, 0)
    good = reader.read()
    ENDED.pack_into(writer._memory, ENDED.offset, 9, 9, 9, 9, 9, 9, 9, 8)
    assert reader.read() == good
    writer.close()
    reader.close()


def test_the_page_outlives_its_writer_and_the_reading_the_page() -> None:
    reader, writer = both_ends()
    writer.set_phase("serving")
    writer.close()
    writer.close()
    last = reader.read()
    assert last.phase == "serving"
    reader.close()
    assert reader.read() == last
    assert reader.fileno() == -1


def test_the_page_has_no_name_and_is_not_inherited_by_accident() -> None:
    page = ProgressPage.create()
    assert "muro-progress" in os.readlink(f"/proc/self/fd/{page.fileno()}")
    assert not os.get_inheritable(page.fileno())
    page.close()


@pytest.mark.parametrize("content", [b"", b"x" * PAGE_SIZE])
def test_another_descriptor_is_refused(content: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        fd = os.dup(file.fileno())
        with pytest.raises(InternalError, match="progress page"):
            ProgressPage.attach(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
