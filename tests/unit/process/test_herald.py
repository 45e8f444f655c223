"""The way to the coordinator, which may be away."""

import tempfile

from muro.process.herald import WAITING, Herald
from muro.transport.sockets import bind_pull, close
from muro.wire.codec import OutputDecoder
from muro.wire.output import EngineCoreOutputs
from tests.support.hosted import is_silent, receive


def test_while_it_is_away_a_bounded_number_waits() -> None:
    with tempfile.TemporaryDirectory(prefix="he-", ignore_cleanup_errors=True) as directory:
        herald = Herald(f"ipc://{directory}/o")
        herald.send(EngineCoreOutputs(start_wave=1))  # not open yet: nothing happens
        herald.open()
        for wave in range(3 * WAITING):
            herald.send(EngineCoreOutputs(engine_index=2, start_wave=wave))
        coordinator = bind_pull(f"ipc://{directory}/o")
        heard = [OutputDecoder().decode(receive(coordinator)) for _ in range(WAITING)]
        assert [message.start_wave for message in heard] == list(range(WAITING))  # type: ignore[union-attr]
        assert is_silent(coordinator, 100)
        herald.send(EngineCoreOutputs(engine_index=2, wave_complete=7))
        assert OutputDecoder().decode(receive(coordinator)) == EngineCoreOutputs(engine_index=2, wave_complete=7)
        herald.close()
        herald.close()
        close(coordinator, 0)
