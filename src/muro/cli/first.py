"""`muro serve` as the first process of a container that has no init: somebody must reap.

The kernel gives every orphan of a PID namespace to its first process, and gives that one no signal for which it has no
handler. So if we are the first, we split at once, before anything is imported: the first process stays behind as a
tiny init, which hands signals on, reaps whoever ends and leaves with the exit code of the second. The second is the
server. It has no child that is not its own, so nobody's exit status can be taken by mistake.

When the first process ends, the kernel kills everything else in the namespace.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def split_if_first() -> None:
    """Return in the process that shall go on with the command: this one, or its only child."""
    if os.getpid() != 1:
        return
    everything = signal.valid_signals()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, everything)  # what comes now waits for the loop below
    if (server := os.fork()) == 0:
        # Ctrl-C shall reach the first process alone, which hands it on: once.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    _be_init(server, everything)


def _be_init(server: int, everything: set[signal.Signals]) -> NoReturn:
    while True:
        number = signal.sigwait(everything)
        if number != signal.SIGCHLD:
            os.kill(server, number)
            continue
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == server:
                    code = os.waitstatus_to_exitcode(ended[1])
                    os._exit(code if code >= 0 else 128 - code)
        except ChildProcessError:  # nobody is left, and so neither is the server
            os._exit(1)
