"""What the runner of the suite reads out of what pytest prints."""

from scripts.run_tests import closing_line, failures, summary

PRINTED = """\
tests/unit/test_a.py F.E                                                 [100%]
FAILED is what a test may print, too
=========================== short test summary info ============================
SKIPPED [1] tests/unit/test_a.py:3: not here
ERROR tests/unit/test_a.py::test_one
FAILED tests/unit/test_a.py::test_one - assert 1 == 2
FAILED tests/unit/test_a.py::test_two[a - b] - AssertionError: first - time
FAILED tests/unit/test_a.py::test_two[a [c] d]
==== 3 failed, 1 passed, 1 error in 0.31s ====
"""


def test_each_failure_is_named_once_whatever_its_parameters() -> None:
    file = "tests/unit/test_a.py"
    assert failures(PRINTED) == [f"{file}::test_one", f"{file}::test_two[a - b]", f"{file}::test_two[a [c] d]"]
    assert failures("==== 3 passed in 0.31s ====") == []


def test_counts_are_added_up() -> None:
    counts = summary(PRINTED) + summary("12 passed, 3 deselected in 4.00s\n")
    assert closing_line(counts, 5.0) == "=" * 10 + " 3 deselected, 1 error, 3 failed, 13 passed in 5.00s " + "=" * 10
