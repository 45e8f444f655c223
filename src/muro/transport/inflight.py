"""Sending without a copy, and knowing what has not left yet.

libzmq reads a frame that was sent without a copy until it has gone to the kernel; whoever changes the memory
before corrupts the message, or crashes. So every such frame is sent by itself with a tracker of its own, and
everything that belongs to the message is kept until *all* its trackers are done: the tracker that a multipart
send returns knows the last frame only, and says "done" at once for a small one.

Copying is cheaper for all but large frames (a tracked frame wakes a thread of pyzmq's when it is released: about
50 us against 5 us for copying 100 KiB), and a copied frame's buffer is free at once. Copied bytes have no
tracker, so after every `WATERMARK` of them one frame goes out tracked: frames leave a socket in order, and when
that one has left, so has everything before it. Bytes in flight are those between the last mark that has left and
the last byte sent; a count is at most one `WATERMARK` too high, never too low.

One thread (the sender) owns an `InFlight`, its pool and the sockets it sends on; each socket has one peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import zmq

from muro.errors import InternalError
from muro.transport.sockets import Frame, Socket, send_frame

ZERO_COPY_BYTES = 256 << 10
"""Frames of this size and over are sent from where they lie."""

WATERMARK = 256 << 10
"""After how many copied bytes a tracked frame is sent."""

MAX_POOLED_BYTES = 4 << 20
"""Buffers larger than this are given back to the system."""

_DONTWAIT = int(zmq.DONTWAIT)
_SNDMORE = int(zmq.SNDMORE) | _DONTWAIT


class BufferPool:
    """Buffers for encoding into; keeps at most `size` of them, none over `max_bytes`."""

    def __init__(self, size: int, max_bytes: int = MAX_POOLED_BYTES) -> None:
        self._size = size
        self._max_bytes = max_bytes
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """A buffer of any length and content."""
        return self._free.pop() if self._free else bytearray()

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back that nobody reads any more."""
        if len(self._free) < self._size and len(buffer) <= self._max_bytes:
            self._free.append(buffer)

    def __len__(self) -> int:
        return len(self._free)


class _Message:
    """A message (or mark) that has trackers; `end` is the lane's byte count after it."""

    __slots__ = ("buffer", "end", "frames", "trackers")

    def __init__(
        self, end: int, trackers: list[zmq.MessageTracker], frames: Sequence[Frame], buffer: bytearray | None
    ) -> None:
        self.end = end
        self.trackers = trackers
        self.frames = frames
        self.buffer = buffer


class _Lane:
    """What was sent on one socket: bytes ever, bytes known to have left, bytes at the last tracked frame."""

    __slots__ = ("left", "marked", "sent", "waiting")

    def __init__(self) -> None:
        self.sent = 0
        self.left = 0
        self.marked = 0
        self.waiting: deque[_Message] = deque()


class InFlight:
    """Sends messages on several sockets, keeps what is being sent, counts what has not left.

    Args:
        limit_bytes: bytes in flight from which on `is_full` says so, per socket.
        pool: where buffers go back to.
    """

    def __init__(self, limit_bytes: int, pool: BufferPool) -> None:
        self._limit = limit_bytes
        self._watermark = max(1, min(WATERMARK, limit_bytes // 8))
        self._pool = pool
        self._lanes: dict[Socket, _Lane] = {}

    def send(self, socket: Socket, frames: Sequence[Frame], buffer: bytearray | None = None) -> None:
        """Send one message.

        Args:
            socket: a PUSH that takes everything (unlimited, connected).
            frames: contiguous bytes each; neither they nor what they show may change until they have left.
            buffer: the pooled buffer that the frames show parts of; the pool has it back when all have left.

        Raises:
            InternalError: the socket did not take it; nothing of it was sent.
        """
        lane = self._lanes.get(socket)
        if lane is None:
            lane = self._lanes[socket] = _Lane()
        if len(frames) == 1 and lane.sent + (size := len(frames[0])) - lane.marked < self._watermark:
            self._send_small(socket, lane, frames[0], size, buffer)
            return
        total = sum(frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames)
        lane.sent += total
        trackers: list[zmq.MessageTracker] = []
        last = len(frames) - 1
        try:
            for position, frame in enumerate(frames):
                flags = _DONTWAIT if position == last else _SNDMORE
                size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
                if size >= ZERO_COPY_BYTES:
                    trackers.append(_send_tracked(socket, frame, flags))
                elif position == last and not trackers and lane.sent - lane.marked >= self._watermark:
                    lane.marked = lane.sent
                    lane.waiting.append(_Message(lane.sent, [_send_tracked(socket, bytes(frame), flags)], (), None))
                else:
                    send_frame(socket, frame, flags)
        except zmq.Again as error:
            raise InternalError("an output socket refused a message although its queue is unlimited") from error
        if trackers:
            lane.marked = lane.sent
            lane.waiting.append(_Message(lane.sent, trackers, frames, buffer))
        elif buffer is not None:
            self._pool.give(buffer)

    def _send_small(self, socket: Socket, lane: _Lane, frame: Frame, size: int, buffer: bytearray | None) -> None:
        """One small frame that needs no mark: nearly every message."""
        try:
            send_frame(socket, frame, _DONTWAIT)
        except zmq.Again as error:
            raise InternalError("an output socket refused a message although its queue is unlimited") from error
        lane.sent += size
        if buffer is not None:
            self._pool.give(buffer)

    def release(self) -> None:
        """Look which messages have left; give their buffers back. Cheap while none is waiting."""
        for lane in self._lanes.values():
            waiting = lane.waiting
            while waiting and all(tracker.done for tracker in waiting[0].trackers):
                message = waiting.popleft()
                lane.left = message.end
                if message.buffer is not None:
                    self._pool.give(message.buffer)

    def bytes_in_flight(self, socket: Socket) -> int:
        """Bytes sent on this socket and, as of the last `release`, not known to have left."""
        lane = self._lanes.get(socket)
        return 0 if lane is None else lane.sent - lane.left

    def is_full(self, socket: Socket) -> bool:
        """Whether the limit is reached; looks first which messages have left."""
        if self.bytes_in_flight(socket) < self._limit:
            return False
        self.release()
        return self.bytes_in_flight(socket) >= self._limit

    def has_waiting(self) -> bool:
        """Whether any buffer or mark is still being waited for."""
        return any(lane.waiting for lane in self._lanes.values())

    def forget(self, socket: Socket) -> None:
        """Stop counting for a socket that is closed; its buffers do not come back to the pool."""
        self._lanes.pop(socket, None)


def _send_tracked(socket: Socket, data: Frame, flags: int) -> zmq.MessageTracker:
    """Send without copying. The Frame object must not outlive the call: its tracker would never be done."""
    tracker = socket.send(zmq.Frame(data, track=True, copy=False), flags, copy=False, track=True)
    if tracker is None:
        raise InternalError("pyzmq returned no tracker for a tracked frame")
    return tracker
