"""The table itself; asks nothing of any peer."""

from tests.interop.peers import RUST_NEW, RUST_OLD, SMG
from tests.interop.table import Table


def test_a_cell_shows_the_worst_of_its_tests() -> None:
    table = Table()
    for node, row, peer, reason in (
        ("a", "talk", RUST_OLD, ""),
        ("b", "talk", RUST_OLD, ""),
        ("c", "talk", RUST_NEW, ""),
        ("d", "talk", RUST_NEW, "whispers"),
        ("e", "sing", RUST_OLD, "hums"),
        ("f", "sing", RUST_NEW, ""),
        ("g", "talk", SMG, ""),
    ):
        table.expect(node, row, peer.name, reason)
    assert table.gaps() == ["smg-1.13.0, sing"]
    for node, outcome in (("a", "passed"), ("b", "failed"), ("c", "passed"), ("d", "passed"), ("e", "passed")):
        table.heard(node, "passed", final=False)
        table.heard(node, outcome, final=True)
    table.heard("g", "passed", final=True)
    table.heard("g", "failed", final=False)
    table.heard("of no row", "failed", final=True)
    assert table.lines() == [
        "| case | vllm-rs-0.25.1 | vllm-rs-0.33.0 | smg-1.13.0 |",
        "| --- | --- | --- | --- |",
        "| talk | FAIL | pass, limit 1 | FAIL |",
        "| sing | limit 2 | not run | not run |",
        "",
        "1. whispers",
        "2. hums",
    ]
