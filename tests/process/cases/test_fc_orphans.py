"""FC-17: the front-end is killed. Its engine and whatever that started go too, and a new start works at once."""

import os
import time
from pathlib import Path

import pytest

from muro import connect
from tests.support.asking import ask
from tests.support.counts import count
from tests.support.deadline import process_ended
from tests.support.programs import descendants, end, line, start

WITHIN = 5.0

FRONT_END = """
import sys, threading
from muro import connect, connect_async
from tests.support.asking import FOREVER, ask
settings = dict(engine="tests.support.engines:WithWorker", options={options}, {settings})
def say(*words):
    print(*words, flush=True)
def wait_for_ever():
    threading.Event().wait()
{body}
"""

SYNC = """
client = connect(**settings)
"""

STATES = {
    "idle": (SYNC + "say('there'); wait_for_ever()", None),
    "streaming": (
        SYNC + "for number, _ in enumerate(client.generate(ask('a', FOREVER))): number or say('there')",
        None,
    ),
    "in a native call that holds the interpreter lock": (
        SYNC + "stream = client.generate(ask('a', FOREVER)); next(stream)\n"
        "threading.Thread(target=lambda: client.call('inject', 'operation:hang_lock'), daemon=True).start()\n"
        "say('there'); wait_for_ever()",
        None,
    ),
    "in a native call that lets go of it": (
        SYNC + "threading.Thread(target=lambda: client.call('inject', 'operation:hang'), daemon=True).start()\n"
        "say('there'); wait_for_ever()",
        None,
    ),
    "spinning": (
        SYNC + "threading.Thread(target=lambda: client.call('inject', 'operation:spin'), daemon=True).start()\n"
        "say('there'); wait_for_ever()",
        None,
    ),
    "loading": (
        "settings['on_progress'] = lambda item: 'weights' in item.sight.phase and say('there')\n" + SYNC,
        "loading:hang",
    ),
    "loading with the interpreter lock": (
        "settings['on_progress'] = lambda item: 'weights' in item.sight.phase and say('there')\n" + SYNC,
        "loading:hang_lock",
    ),
    "shutting down": (
        SYNC + "threading.Thread(target=client.close, args=(60,), daemon=True).start()\n"
        "while client.engines()[0].progress.phase != 'stopping': pass\n"
        "say('there'); wait_for_ever()",
        "shutdown:hang_lock",
    ),
    "streaming, asyncio": (
        (
            "import asyncio\n"
            "async def main():\n"
            "    client = await connect_async(**settings)\n"
            "    stream = client.generate(ask('a', FOREVER))\n"
            "    await anext(stream)\n"
            "    say('there')\n"
            "    async for _ in stream: pass\n"
            "    await asyncio.sleep(3600)\n"
            "asyncio.run(main())"
        ),
        None,
    ),
}


@pytest.mark.cases
@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", STATES)
def test_fc17_a_killed_front_end_leaves_nothing(state: str, tmp_path: Path) -> None:
    body, fault = STATES[state]
    options = {"step_ms": 5} | ({"fault": fault} if fault else {})
    sockets = f"socket_dir={str(tmp_path)!r}"
    for _ in range(count(1, 10)):
        program = start(FRONT_END.format(options=options, settings=sockets, body=body))
        try:
            assert line(program) == "there"
            engine_and_worker = descendants(program.pid, at_least=2)
            assert len(engine_and_worker) == 2
        finally:
            end(program)
        killed = time.monotonic()
        with connect(engine="echo", socket_dir=str(tmp_path)) as client:
            assert len(list(client.generate(ask("new")))) == 3
        for pid in engine_and_worker:
            process_ended(pid, within=killed + WITHIN - time.monotonic())
        assert os.listdir(tmp_path) == []


@pytest.mark.cases
def test_fc17_the_port_is_free_at_once() -> None:
    settings, port = "host='127.0.0.1'", 0
    for _ in range(count(3, 20)):
        body = SYNC + "say(client._link._doors.handshake_address.rpartition(':')[2]); wait_for_ever()"
        program = start(FRONT_END.format(options={}, settings=f"{settings}, handshake_port={port}", body=body))
        try:
            said = int(line(program))
            assert port in (0, said)
            port = said
            left = descendants(program.pid, at_least=2)
        finally:
            end(program)
        for pid in left:
            process_ended(pid, within=WITHIN)
