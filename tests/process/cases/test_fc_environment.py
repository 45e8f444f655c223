"""FC-48, FC-52: each engine has its own environment before its first import, and its share of the processors."""

import os
import threading
import time
from pathlib import Path

import pytest

from muro import SyncMPClient, connect
from muro.config import available_cpus
from tests.support.asking import ask
from tests.support.counts import count

pytestmark = [pytest.mark.cases, pytest.mark.timeout(300)]

ENGINE = "tests.support.engines:Surveyor"
LIMITS = ("MURO_CPUS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")
HOOK = """
import os, sys
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == "muro" and "MURO_TEST_SEEN" not in os.environ:
            os.environ["MURO_TEST_SEEN"] = os.environ.get("MURO_TEST_WORD", "nothing")
            with open(os.environ["MURO_TEST_FILE"], "a") as file:
                file.write(os.environ["MURO_TEST_SEEN"] + chr(10))
sys.meta_path.insert(0, Hook())
"""


def survey(client: SyncMPClient, rank: int = 0) -> dict[str, str]:
    told: dict[str, str] = client.call("survey", engine=rank)
    return told


def test_fc52_each_engine_sees_its_own_values_before_any_import(tmp_path: Path) -> None:
    """An import hook of the interpreter itself looks when the first module of muro is imported."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    rounds = count(2, 20)
    before = dict(os.environ)
    seen: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
    barrier = threading.Barrier(2)
    failures: list[BaseException] = []

    def life(word: str) -> None:
        try:
            file = tmp_path / f"seen-{word}"
            env = {"MURO_TEST_WORD": word, "MURO_TEST_FILE": str(file), "PYTHONPATH": str(tmp_path)}
            for _ in range(rounds):
                barrier.wait(60)
                with connect(engine=ENGINE, env=env) as client:
                    seen[word].append((survey(client)["MURO_TEST_WORD"], survey(client)["MURO_TEST_SEEN"]))
            assert file.read_text().split() == [word] * rounds
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=life, args=(word,)) for word in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen == {word: [(word, word)] * rounds for word in seen}
    assert dict(os.environ) == before


def test_fc48_four_engines_share_two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    mask = os.sched_getaffinity(0)
    two = set(sorted(mask)[:2])
    began = time.monotonic()
    os.sched_setaffinity(0, two)
    try:
        with connect(engine=ENGINE, num_engines=4, startup_timeout=120) as client:
            took = time.monotonic() - began
            told = [survey(client, rank) for rank in range(4)]
            assert len(list(client.generate(ask("a")))) == 3
    finally:
        os.sched_setaffinity(0, mask)
    share = str(max(1, len(two) // 4))
    assert [{name: one[name] for name in LIMITS} for one in told] == [dict.fromkeys(LIMITS, share)] * 4
    threads = [int(one["blas threads"]) for one in told]
    print(f"\n4 engines on {len(two)} processors: {took:.1f} s, threads of BLAS: {threads}")
    assert threads == [0] * 4  # besides the one that calls


def test_fc48_an_explicit_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MURO_CPUS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with connect(engine=ENGINE, env={"RAYON_NUM_THREADS": "5"}) as client:
        told = survey(client)
    assert (told["OMP_NUM_THREADS"], told["RAYON_NUM_THREADS"]) == ("3", "5")
    assert told["MURO_CPUS"] == str(available_cpus())
    assert int(told["blas threads"]) == min(3, len(os.sched_getaffinity(0))) - 1  # OpenBLAS makes no more than that


@pytest.mark.parametrize("quota", [100_000, 50_000])
def test_fc48_a_quota_counts(quota: int) -> None:
    group = Path("/sys/fs/cgroup/cpu" if Path("/sys/fs/cgroup/cpu").exists() else "/sys/fs/cgroup") / "muro-test"
    old = "cpu" in group.parts
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    home = own_group(old)
    try:
        try:
            if old:
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} 100000")
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            pytest.skip("control groups do not limit processors here")
        assert available_cpus() == 1
        with connect(engine=ENGINE, num_engines=2) as client:
            assert [survey(client, rank)["MURO_CPUS"] for rank in (0, 1)] == ["1", "1"]
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def own_group(old: bool) -> Path:
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = row.split(":", 2)
        if old and "cpu" in kinds.split(","):
            return Path("/sys/fs/cgroup/cpu" + path)
        if not old and not kinds:
            return Path("/sys/fs/cgroup" + path)
    pytest.skip("no control group")
