"""descriptors.py: what a child inherits."""

import os
from contextlib import ExitStack

import pytest

from muro.launch.descriptors import avoid_standard, memory_file


def test_a_memory_file_has_its_content_and_goes_with_its_stack() -> None:
    with ExitStack() as stack:
        descriptor = memory_file(stack, "muro-test", b"settings")
        assert os.pread(descriptor, 100, 0) == b"settings"
        assert not os.get_inheritable(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_nothing_is_kept_where_the_standard_three_are_open() -> None:
    before = os.listdir("/proc/self/fd")
    with ExitStack() as stack:
        avoid_standard(stack)
        assert os.listdir("/proc/self/fd") == before
