"""What engines said in a recording, by the rules for their messages: nothing is asked, all that passed is judged."""

from __future__ import annotations

from collections.abc import Iterable

from muro.probe.check.engine_rules import RULES, UNKNOWN, Course, Watch
from muro.probe.check.report import Findings, Report
from muro.probe.reading import Message, Reader
from muro.probe.recording import Direction, Kept, Record, Role, opened
from muro.wire.control import AbortRequest
from muro.wire.handshake import ReadyResponse
from muro.wire.releases import layout_for, layout_of_engine
from muro.wire.request import EngineCoreRequest


def check_recording(path: str, release: str | None = None) -> Report:
    """Judge what engines said in the recording at a path.

    Raises:
        ConfigError: there is no such release, or no such recording, or it is damaged.
    """
    with opened(path) as recording:
        return judge_records(recording.records(), path, release)


def judge_records(records: Iterable[Record], name: str, release: str | None = None) -> Report:
    """Judge all messages to front-ends, those of the handshake included.

    Args:
        records: in their order, from the beginning.
        name: what to call the recording.
        release: of the front-ends, as in "0.28"; None: that which each engine named.

    Raises:
        ConfigError: there is no such release, or the recording is damaged.
    """
    judge = _Judge(release)
    for record in records:
        judge.take(record)
    peer = f"{judge.judged} messages of {len(judge.engines)} engine(s) in {name}"
    if judge.cut:
        peer += (
            f"; {judge.cut} more were too large to be recorded whole (--max-frame-bytes of the tap) and are not judged"
        )
    return Report(peer, judge.findings.rows(RULES, "nothing of the kind came"))


class _Judge:
    """One recording. An engine that joins again is another one."""

    def __init__(self, release: str | None) -> None:
        self.findings = Findings()
        self.engines: set[int] = set()
        self.judged = 0
        self.cut = 0
        """Messages of engines of which the recording lacks something."""
        self._layout = None if release is None else layout_for(release)
        self._reader = Reader()
        self._versions: dict[int, str] = {}
        self._watches: dict[int, Watch] = {}

    def take(self, record: Record) -> None:
        if record.direction is Direction.TO_ENGINE:
            self._asked(self._reader.read(record))
        elif record.direction is Direction.TO_FRONTEND:
            self.engines.add(record.link)
            self._said(record)

    def _asked(self, message: Message) -> None:
        """What an engine was asked: its outputs are judged by it."""
        if isinstance(request := message.value, EngineCoreRequest):
            prompt = request.prompt_token_ids
            course = Course(UNKNOWN if prompt is None else len(prompt))
            self._watch(message.record).courses[request.client_index, request.request_id] = course
        elif isinstance(message.value, AbortRequest):
            courses = self._watch(message.record).courses
            for request_id in message.ids:
                if asked := courses.get((message.record.client or 0, request_id)):
                    asked.settled = True

    def _said(self, record: Record) -> None:
        if any(frame.kept is Kept.CUT for frame in record.frames):
            self.cut += 1
            return
        self.judged += 1
        frames = record.payloads
        if frames is not None and record.role in (Role.OUTPUT, Role.COORDINATOR_OUTPUT):
            self._watch(record).take(record.client or 0, frames)
            return
        message = self._reader.read(record)
        if isinstance(message.value, ReadyResponse):
            self._versions.setdefault(record.link, message.value.vllm_version)
        if message.fault:
            self.findings.fails("readable", f"{message.fault}; at {record.at:.6f} s")

    def _watch(self, record: Record) -> Watch:
        watch = self._watches.get(record.link)
        if watch is None:
            layout = self._layout or layout_of_engine(self._versions.get(record.link, ""))
            watch = Watch(self.findings, layout, int.from_bytes(record.peer, "little"))
            self._watches[record.link] = watch
        return watch
