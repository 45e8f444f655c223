import threading
from pathlib import Path

import pytest

from muro.transport.floor import open_floor, serve


@pytest.mark.parametrize("shaped", [False, True])
def test_round_trips_until_told_to_stop(tmp_path: Path, shaped: bool) -> None:
    addresses = f"ipc://{tmp_path}/i", f"ipc://{tmp_path}/o"
    client = open_floor(*addresses, [b"\x03", b"call"])
    engine = threading.Thread(target=serve, args=(*addresses, b"\0\0", [b"reply"]), kwargs={"shaped": shaped})
    engine.start()
    assert client.accept(5000)
    for _ in range(20):
        client.round_trip()
    client.close()
    client.close()
    engine.join(5)
    assert not engine.is_alive()


def test_nobody_comes(tmp_path: Path) -> None:
    client = open_floor(f"ipc://{tmp_path}/i", f"ipc://{tmp_path}/o", [])
    assert not client.accept(10)
    client.close()
