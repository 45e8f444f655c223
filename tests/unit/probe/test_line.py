"""One direction of a connection: nothing is lost or overtaken while the other side takes nothing."""

from muro.probe.line import Lane


def test_a_message_is_held_until_it_is_taken() -> None:
    there, taken, noted = [[b"1"], [b"2"], [b"3"]], list[list[bytes]](), list[list[bytes]]()
    willing = True

    def give(frames: list[bytes]) -> bool:
        if willing:
            taken.append(frames)
        return willing

    lane = Lane(lambda: there.pop(0) if there else None, give, noted.append)  # type: ignore[arg-type,return-value]
    assert lane.move() and taken == [[b"1"]]
    willing = False
    assert not lane.move() and not lane.move()
    assert lane.held == [b"2"] and there == [[b"3"]], "nothing more is read meanwhile"
    assert noted == [[b"1"]], "what is not passed on is not recorded"
    willing = True
    assert lane.move() and lane.move() and not lane.move()
    assert taken == noted == [[b"1"], [b"2"], [b"3"]] and lane.held is None
