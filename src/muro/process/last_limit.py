"""An engine that has failed and that nobody watches ends itself in time, even if its clean-up hangs.

One that was started by a front-end is killed by it (`launch.supervisor`). One that was started alone would stay for
ever, announced as dead, and whoever would start it again waits for its end.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading

log = logging.getLogger(__name__)

LIMIT = 6.0
"""Seconds for the clean-up; a front-end allows as many."""
_GRACE = 2.0
"""Seconds after which the process is ended if not even that comes about."""


def end_within(seconds: float, code: int) -> None:
    """End this process after so many seconds, unless it has ended by then; where it hangs goes to standard error."""
    if sys.__stderr__ is not None:
        # Native, so it works while somebody holds the interpreter lock, and when the interpreter is being taken down.
        faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=sys.__stderr__)
    threading.Thread(target=_end, args=(seconds, code), name="muro-last-limit", daemon=True).start()


def _end(seconds: float, code: int) -> None:
    threading.Event().wait(seconds)
    log.error("the engine has failed, and its clean-up has hung for %g s; the process ends now", seconds)
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback(sys.__stderr__)
    os._exit(code)
