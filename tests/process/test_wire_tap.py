"""A tap between bare sockets: whatever passes, passes unchanged, and an end of one side is seen by the other."""

import re
import resource
import signal
import stat
from pathlib import Path

import pytest

from muro.probe.reading import Kind
from muro.probe.recording import Direction, Kept, Role
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import Socket, send_nowait
from muro.wire.frames import COORDINATOR_READY, ENGINE_CORE_DEAD, SUBSCRIBE
from tests.support.programs import run
from tests.support.taps import HERE, PATIENCE, Ends, heard, pack, recorded, tapped

JUNK = [[b""], [b"\x00"], [b"\xff", b"\xc1"], [b"\0", b"", b"", b""], [b"x" * 70_000, b"y" * 300_000], [b"\3"] * 50]


def test_init_alone_is_changed_and_only_its_addresses(tmp_path: Path) -> None:
    with Ends(clients=2, coordinator=True) as ends, tapped(ends.address, tmp_path / "rec") as tap:
        seen = ends.join(tap.address)
        here, there = seen.addresses, ends.init.addresses
        assert seen.parallel_config == ends.init.parallel_config
        assert here.frontend_stats_publish_address == there.frontend_stats_publish_address
        mine = {*here.inputs, *here.outputs, here.coordinator_input, here.coordinator_output}
        theirs = {*there.inputs, *there.outputs, there.coordinator_input, there.coordinator_output}
        assert len(mine) == 6 and mine.isdisjoint(theirs)
        tap.end()
    kinds = [message.kind for message in recorded(tmp_path / "rec") if message.kind is not Kind.EVENT]
    assert kinds == [Kind.HELLO, Kind.INIT, Kind.RESPONSE, Kind.RESPONSE, Kind.READY]


@pytest.mark.parametrize("prompts", [True, False])
def test_junk_passes_unchanged_and_in_order(tmp_path: Path, prompts: bool) -> None:
    flags = ["--with-prompts"] if prompts else []
    with Ends(clients=2) as ends, tapped(ends.address, tmp_path / "rec", *flags) as tap:
        ends.join(tap.address)
        for client in (0, 1):
            for frames in JUNK:
                ends.to_engine(client, *frames)
                ends.to_front_end(client, *frames)
            for frames in JUNK:
                assert heard(ends.engine_inputs[client]) == frames
                assert heard(ends.outputs[client]) == frames
        send_nowait(ends.engine_inputs[1], [b"more", b"than", b"a response"])
        assert heard(ends.inputs[1]) == [ends.identity, b"more", b"than", b"a response"]
        tap.end()
    passed = [m.record for m in recorded(tmp_path / "rec") if m.record.role in (Role.INPUT, Role.OUTPUT)]
    passed = [record for record in passed if record.direction is not Direction.EVENT]
    assert len(passed) == 2 + 4 * len(JUNK) + 1
    sizes = [[frame.size for frame in record.frames] for record in passed]
    assert sizes.count([70_000, 300_000]) == 4
    kept = {frame.kept for record in passed[2:] for frame in record.frames if frame.size > 16}
    assert kept == ({Kept.WHOLE} if prompts else {Kept.HASHED})


def test_the_coordinator_is_tapped_as_well() -> None:
    with Ends(coordinator=True) as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        assert ends.publisher and ends.collector and ends.engine_gate and ends.engine_report
        send_nowait(ends.engine_gate, [SUBSCRIBE])
        assert heard(ends.publisher) == [SUBSCRIBE]
        send_nowait(ends.publisher, [COORDINATOR_READY])
        assert heard(ends.engine_gate) == [COORDINATOR_READY]
        wave = [b"\2", pack([3, None])]
        send_nowait(ends.publisher, wave)
        assert heard(ends.engine_gate) == wave
        send_nowait(ends.engine_report, [pack([0, [], None, 1.0, None, None, 3])])
        assert heard(ends.collector) == [pack([0, [], None, 1.0, None, None, 3])]


def test_thousands_of_messages_keep_their_order(tmp_path: Path) -> None:
    count = 5000  # more than wait in any queue
    with Ends() as ends, tapped(ends.address, tmp_path / "rec") as tap:
        ends.join(tap.address)
        for number in range(count):
            ends.to_engine(0, b"\1", pack([str(number)]))
            ends.to_front_end(0, pack([0, [[str(number), [1]]]]))
        assert [heard(ends.engine_inputs[0])[1] for _ in range(count)] == [pack([str(n)]) for n in range(count)]
        assert [heard(ends.outputs[0])[0] for _ in range(count)] == [pack([0, [[str(n), [1]]]]) for n in range(count)]
        report = tap.end()
    assert re.search(rf"^output +to-frontend +{count} messages +\d+ bytes$", report, re.M), report
    aborts = [message.ids for message in recorded(tmp_path / "rec") if message.kind is Kind.ABORT]
    assert aborts == [{str(number)} for number in range(count)]


def test_a_slow_reader_is_waited_for_and_loses_nothing() -> None:
    count, filling = 4000, b"x" * 10_000  # more than lies in all queues and in the kernel
    with Ends(limit=2) as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        for number in range(count):
            ends.to_engine(0, b"%d" % number, filling)
            ends.to_front_end(0, b"%d" % number, filling)
        resident = int(Path(f"/proc/{tap.process.pid}/statm").read_text().split()[1]) * resource.getpagesize()
        assert resident < 250 << 20
        for number in range(count):
            assert heard(ends.engine_inputs[0]) == [b"%d" % number, filling]
        for number in range(count):
            assert heard(ends.outputs[0]) == [b"%d" % number, filling]


def test_several_engines_with_their_own_lines(tmp_path: Path) -> None:
    with Ends(rank=0) as ends, Ends(rank=258) as others, tapped(ends.address, tmp_path / "rec") as tap:
        others.handshake, spare = ends.handshake, others.handshake  # one front-end for both
        first, second = ends.join(tap.address), others.join(tap.address)
        assert set(first.addresses.inputs).isdisjoint(second.addresses.inputs)
        ends.to_engine(0, b"\1", pack(["a"]))
        others.to_engine(0, b"\1", pack(["b"]))
        assert heard(ends.engine_inputs[0])[1] == pack(["a"]) and heard(others.engine_inputs[0])[1] == pack(["b"])
        tap.end()
        others.handshake = spare
    peers = {message.record.peer: message.ids for message in recorded(tmp_path / "rec") if message.kind is Kind.ABORT}
    assert peers == {b"\0\0": {"a"}, b"\2\1": {"b"}}


def ended(monitor: Monitor) -> None:
    """Wait until a connection of a socket has ended."""
    changes: list[Change] = []
    pump = Pump()
    pump.add(monitor.socket, lambda: changes.extend(news[0] for news in [monitor.read()] if news))
    while Change.DOWN not in changes:
        assert pump.poll(int(PATIENCE * 1000)), "the other side did not see it go"


def watch(socket: Socket) -> Monitor:
    return Monitor.of(socket)


def test_the_front_end_sees_an_engine_go_after_its_last_words() -> None:
    with Ends() as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        monitor = watch(ends.inputs[0])
        ends.to_front_end(0, pack([0, [["a", [1]]]]))
        ends.to_front_end(0, ENGINE_CORE_DEAD)
        assert heard(ends.outputs[0]) == [pack([0, [["a", [1]]]])]
        assert heard(ends.outputs[0]) == [ENGINE_CORE_DEAD]
        ends.end_engine()
        ended(monitor)
        monitor.close()


def test_the_engine_sees_its_front_end_go() -> None:
    with Ends() as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        monitor = watch(ends.engine_inputs[0])
        ends.to_engine(0, b"\1", pack(["last words"]))
        assert heard(ends.engine_inputs[0]) == [b"\1", pack(["last words"])]
        ends.end_front_end()
        ended(monitor)
        monitor.close()


def test_both_see_the_tap_go() -> None:
    with Ends() as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        monitors = [watch(ends.inputs[0]), watch(ends.engine_inputs[0])]
        tap.end()
        for monitor in monitors:
            ended(monitor)
            monitor.close()


def test_an_engine_that_comes_again_is_another_one(tmp_path: Path) -> None:
    with Ends() as ends, tapped(ends.address, tmp_path / "rec") as tap:
        ends.join(tap.address)
        ends.end_engine()
        with Ends() as again:
            spare, again.handshake = again.handshake, ends.handshake
            again.join(tap.address)
            again.to_front_end(0, pack([0, [["b", [1]]]]))
            assert heard(again.outputs[0]) == [pack([0, [["b", [1]]]])]
            again.handshake = spare
        tap.end()
    links = {message.record.link for message in recorded(tmp_path / "rec") if message.kind is Kind.HELLO}
    assert links == {0, 1}


def test_an_engine_that_comes_again_before_the_tap_knows_that_it_went() -> None:
    with Ends() as ends, tapped(ends.address) as tap:
        ends.join(tap.address)
        for _ in range(5):
            tap.process.send_signal(signal.SIGSTOP)
            ends.end_engine()
            engine = ends.dial(tap.address)
            tap.process.send_signal(signal.SIGCONT)
            ends.lead(engine)
        tap.end()


def test_a_full_recording_stops_nobody(tmp_path: Path) -> None:
    with Ends() as ends, tapped(ends.address, tmp_path / "rec", "--max-file-bytes", "2000") as tap:
        ends.join(tap.address)
        for number in range(100):
            ends.to_engine(0, b"\1", pack([str(number)]))
            assert heard(ends.engine_inputs[0])[1] == pack([str(number)])
        report = tap.end()
    assert "the recording ends here: the file has reached its limit of 2000 bytes" in report
    assert "more were not recorded" in report
    assert (tmp_path / "rec").stat().st_size <= 2000
    assert stat.S_IMODE((tmp_path / "rec").stat().st_mode) == 0o600


def test_over_ipc(tmp_path: Path) -> None:
    with Ends() as ends, tapped(ends.address, listen=f"ipc://{tmp_path}/tap") as tap:
        seen = ends.join(tap.address)
        assert all(address.startswith("ipc://") for address in seen.addresses.inputs)
        ends.to_engine(0, b"\1", pack(["a"]))
        assert heard(ends.engine_inputs[0]) == [b"\1", pack(["a"])]


def test_it_passes_on_when_nobody_reads_what_it_says() -> None:
    """As under `muro wire tap ... | head -1`."""
    with Ends() as ends, tapped(ends.address) as tap:
        assert tap.process.stdout is not None and tap.process.stderr is not None
        tap.process.stdout.close()
        ends.join(tap.address)
        ends.to_engine(0, b"\1", pack(["a"]))
        assert heard(ends.engine_inputs[0]) == [b"\1", pack(["a"])]
        tap.process.send_signal(signal.SIGINT)
        assert tap.process.wait(PATIENCE) == 0, tap.process.stderr.read()
        assert tap.process.stderr.read() == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "tcp://10.0.0.1:5555", "--to", HERE], "--insecure-tcp"),
        (["--listen", HERE, "--to", "tcp://10.0.0.1:5555"], "--insecure-tcp"),
        (["--listen", HERE, "--to", "tcp://127.0.0.1:0"], "names no port"),
        (["--listen", "here", "--to", HERE], "is no address"),
        (["--listen", "tcp://127.0.0.1:9", "--to", "tcp://127.0.0.1:9"], "the tap would dial itself"),
        (["--listen", "tcp://0.0.0.0:0", "--to", "tcp://127.0.0.1:9", "--insecure-tcp"], "every interface"),
        (["--listen", HERE, "--to", "tcp://127.0.0.1:9", "--record", "{file}"], "never overwritten"),
    ],
)
def test_what_is_refused(tmp_path: Path, flags: list[str], words: str) -> None:
    (tmp_path / "there").write_text("precious")
    given = [flag.format(file=tmp_path / "there") for flag in flags]
    done = run(["-m", "muro", "wire", "tap", *given])
    assert done.code == 2 and words in done.err, done.err
    assert (tmp_path / "there").read_text() == "precious"


def test_a_tap_that_cannot_listen_leaves_no_recording(tmp_path: Path) -> None:
    with Ends() as ends:
        taken = ["--listen", ends.address, "--to", "tcp://127.0.0.1:9"]
        done = run(["-m", "muro", "wire", "tap", *taken, "--record", str(tmp_path / "rec")])
    assert done.code == 2 and "another process listens there" in done.err
    assert not (tmp_path / "rec").exists()
