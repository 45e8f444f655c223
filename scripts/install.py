"""Install the project with extras into the running interpreter's environment, telling little.

pip's resolver prints hundreds of lines; on success this shows one per package fetched, on failure all
that pip said. The exit code is pip's.
"""

import re
import subprocess
import sys

_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
_FETCHED = re.compile(
    r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?([^\s/-]+)-([^\s/-]+)\S*\.\S+(?: \((.+)\))?"
)


def main(extras: str) -> int:
    """Bring pip up to date (best effort) and install ``.[extras]`` in editable form; returns an exit code."""
    print(f"Installing muro[{extras}]", flush=True)
    # An old pip resolves more slowly but works, so failing to renew it is no reason to stop.
    subprocess.run([*_PIP, "install", "--quiet", "--quiet", "--upgrade", "pip"], check=False)
    code, said = _install(extras)
    if code:
        print("".join(said), file=sys.stderr)
    return code


def _install(extras: str) -> tuple[int, list[str]]:
    command = [*_PIP, "install", "--progress-bar", "off", "--editable", f".[{extras}]"]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            said.append(line)
            if fetched := _FETCHED.match(line):
                name, version, size = fetched.groups()
                print(f"  {name} {version}" + (f" ({size})" if size else ""), flush=True)
            elif line.startswith("Installing collected packages"):
                print("  unpacking", flush=True)
    return pip.returncode, said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
