"""Which wire layout each client of this engine reads (protocol section 16.5).

Nothing in the handshake of a foreign front-end tells its release, so an engine writes the safe layout until
the length of the first ADD says more, or the call of an operation that only later releases have. The receiver
thread learns, the sender thread asks; a slot is replaced as a whole, so neither ever sees a half-changed one.
"""

from __future__ import annotations

from muro.ids import ClientIndex
from muro.wire.releases import NEWEST, SAFE, Layout, layout_for, layout_for_add_length, layout_for_call


class PeerLayouts:
    """A layout per client index.

    Args:
        clients: number of front-end processes.
        release: what the operator says ("auto" or a release).
        ours: whether the front-end is muro, so that the newest layout may be used at once.
    """

    def __init__(self, clients: int, release: str, ours: bool) -> None:
        self._learning = release == "auto" and not ours
        start = NEWEST if ours else SAFE if release == "auto" else layout_for(release)
        self._layouts: list[Layout] = [start] * clients
        self._known = [not self._learning] * clients

    def __getitem__(self, client: ClientIndex) -> Layout:
        return self._layouts[client]

    def learn(self, client: ClientIndex, add_length: int) -> None:
        """A request of `add_length` elements came from this client; only the first one counts."""
        if self._known[client]:
            return
        self._known[client] = True
        layout = layout_for_add_length(add_length)
        if layout is not None:
            self._layouts[client] = layout

    def learn_call(self, client: ClientIndex, method: str) -> None:
        """This client calls an operation; if older releases do not have it, its release is not older."""
        if not self._learning or (layout := layout_for_call(method)) is None:
            return
        if layout.minor > self._layouts[client].minor:
            self._layouts[client] = layout
