"""host.py: log records that wait for a report. The host itself: tests/process/test_rank_host.py."""

import pytest

from muro.cluster.host import MAX_RECORDS_BYTES, RankHost, Records
from muro.errors import UsageError


def test_records_are_given_once_and_in_order() -> None:
    records = Records()
    for number in range(3):
        records.take(b"%d" % number, "engine 0")
    assert records.give() == ([b"0", b"1", b"2"], 0)
    assert records.give() == ([], 0)


def test_the_newest_stay_and_the_others_are_counted() -> None:
    records = Records()
    for number in range(5):
        records.take(bytes([number]) * (MAX_RECORDS_BYTES // 2), "engine 0")
    given, dropped = records.give()
    assert [record[0] for record in given] == [3, 4] and dropped == 3
    assert records.give() == ([], 0)


def test_nothing_to_report_of() -> None:
    with pytest.raises(UsageError):
        RankHost().report()
