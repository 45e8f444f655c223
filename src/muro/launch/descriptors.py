"""Descriptors that a child inherits: memory files, and none among the standard three."""

from __future__ import annotations

import contextlib
import os


def memory_file(stack: contextlib.ExitStack, name: str, content: bytes) -> int:
    """A memory file with this content, which `stack` closes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def avoid_standard(stack: contextlib.ExitStack) -> None:
    """Occupy 0, 1 and 2 where a program has closed them, lest ours get these numbers and meet the child's own."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        stack.callback(os.close, descriptor)
    os.close(descriptor)
