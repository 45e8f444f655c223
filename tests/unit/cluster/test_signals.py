"""signals.py: handlers that native code sets are gone again, in any thread."""

import ctypes
import os
import signal
import threading

from muro.cluster.signals import signals_untouched


def test_a_handler_set_natively_does_not_stay() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:

        def take_over() -> None:
            with signals_untouched():
                ctypes.CDLL(None).signal(int(signal.SIGUSR1), ctypes.c_void_p(1))  # SIG_IGN, behind Python's back

        thread = threading.Thread(target=take_over)
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
