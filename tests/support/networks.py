"""Two machines on one: network namespaces with a cable between them, where the user may make them (root)."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One end of the cable."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """To be put in front of a command that shall run there."""
        return ("ip", "netns", "exec", self.namespace)


@dataclass(frozen=True)
class Cable:
    """Both ends."""

    left: Machine
    right: Machine

    def cut(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        for machine in (self.left, self.right):
            _run(*machine.prefix, "ip", "link", "set", "cable", "down")

    def mend(self) -> None:
        for machine in (self.left, self.right):
            _run(*machine.prefix, "ip", "link", "set", "cable", "up")


@contextlib.contextmanager
def two_machines() -> Iterator[Cable | None]:
    """Two namespaces; None where they cannot be made."""
    names = [f"muro-{os.getpid()}-{end}" for end in "lr"]
    with contextlib.ExitStack() as undo:
        try:
            for name in names:
                _run("ip", "netns", "add", name)
                undo.callback(_run, "ip", "netns", "del", name)
            where = ("ip", "-n", names[0], "link", "add", "cable", "type", "veth")
            _run(*where, "peer", "name", "cable", "netns", names[1])
            machines = [Machine(name, f"10.77.0.{number}") for number, name in enumerate(names, 1)]
            for machine in machines:
                _run("ip", "-n", machine.namespace, "addr", "add", f"{machine.address}/24", "dev", "cable")
                for device in ("cable", "lo"):
                    _run("ip", "-n", machine.namespace, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        yield Cable(*machines)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
