"""What passes a tap is counted, and recorded if that was asked for. Belongs to one thread.

Whatever goes wrong here costs a record and nothing else: nobody's message waits for its being recorded.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence

from muro.probe.recording import Direction, KeptFrame, Record, Recorder, Role
from muro.probe.withholding import Withholder, hashed, whole
from muro.wire.frames import Frame

log = logging.getLogger(__name__)


class Journal:
    """Takes note of messages and events.

    Args:
        recorder: None: nothing is recorded.
        withholder: makes the copies that are kept; None: everything is kept.
        max_frame_bytes: of a frame as it came no more is kept.
        tell: called with each event, in people's words.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        withholder: Withholder | None,
        max_frame_bytes: int,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._recorder = recorder
        self._withholder = withholder
        self._max = max_frame_bytes
        self._tell = tell
        self._told_problem = False
        self.messages: Counter[tuple[Role, Direction]] = Counter()
        self.bytes: Counter[tuple[Role, Direction]] = Counter()

    def message(
        self, role: Role, direction: Direction, peer: bytes, link: int, client: int | None, frames: Sequence[Frame]
    ) -> None:
        """A message that has been passed on."""
        self.messages[role, direction] += 1
        self.bytes[role, direction] += sum(map(len, frames))
        if (recorder := self._recorder) is None:
            return
        at = recorder.now()
        kept, withheld = self._kept(role, direction, peer, frames)
        recorder.write(Record(at, direction, role, peer, link, client, kept, withheld))
        self._look(recorder)

    def event(self, role: Role, peer: bytes, link: int, client: int | None, note: str) -> None:
        """Something that happened to a connection."""
        self._tell(note)
        if (recorder := self._recorder) is not None:
            recorder.write(Record(recorder.now(), Direction.EVENT, role, peer, link, client, [], note=note))
            self._look(recorder)

    def _kept(
        self, role: Role, direction: Direction, peer: bytes, frames: Sequence[Frame]
    ) -> tuple[list[KeptFrame], list[str]]:
        if self._withholder is None:
            return whole(frames, self._max), []
        try:
            return self._withholder.keep(role, direction, peer, frames)
        except Exception:  # a bug of ours must not cost the peers their connection
            log.exception("a message could not be looked at; its hashes are kept")
            return [hashed(frame) for frame in frames], ["message"]

    def _look(self, recorder: Recorder) -> None:
        if recorder.problem and not self._told_problem:
            self._told_problem = True
            self._tell(f"the recording ends here: {recorder.problem}; messages pass as before")
