"""A target for `launch.spawn` that runs an engine and then says how it found the process afterwards."""

import gc
import json
import signal
import sys
import threading

from muro.child.context import ChildContext
from muro.child.signals import STOP_SIGNALS
from muro.process.main import run_engine_core


def run_and_tell(context: ChildContext) -> int:
    """The last line of the log is JSON."""
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    threads = set(threading.enumerate())
    code = run_engine_core(context)
    told = {
        "handlers given back": [signal.getsignal(number) for number in STOP_SIGNALS] == before,
        "frozen": gc.get_freeze_count(),
        "threads": sorted(thread.name for thread in set(threading.enumerate()) - threads),
    }
    print(json.dumps(told), file=sys.stderr, flush=True)
    return code
