"""Settings: frozen, validated once. Nobody else in the package reads the environment.

Structs here cross the boundary between parent and child as JSON, so they hold plain values only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from muro.errors import ConfigError

LONGEST = 1e9
"""Seconds, about thirty years: what every clock and poll can wait for."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds at the doors of an engine; what is over a bound costs one request, never the engine."""

    max_requests: int = 100_000
    """Requests admitted and not yet finished."""
    max_request_bytes: int = 1 << 30
    """Bytes of all requests admitted and not yet taken by the loop."""
    max_message_bytes: int = 256 << 20
    """Size of one message on the input socket."""
    max_bytes_in_flight: int = 256 << 20
    """Bytes sent to one client and not yet read by it."""


class CurveKeys(msgspec.Struct, frozen=True):
    """With which keys an engine dials its front-end, in Z85. Crosses to a child in memory only; never shown."""

    server: str
    """The front-end's public key."""
    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(server={self.server!r}, public={self.public!r}, secret=...)"


def _check_finite(config: msgspec.Struct, *names: str) -> None:
    """Refuse times that no clock can wait for, and nan. Raises ConfigError."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not abs(value) <= LONGEST:
            raise ConfigError(f"{name} is {value:g}; it must be a number of seconds, {LONGEST:.0f} at most")


class LockstepConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The group of a lockstep engine: ranks 0 ... size - 1, which all step together. Times in seconds.

    Whoever starts the engines fills in `size`, `address` and `token`.
    """

    size: int = 1
    address: str = ""
    """Where rank 0 hears the votes of the others; not used by engines that bring a group of their own."""
    token: str = ""
    """Tells this group from an earlier one at the same address; the same for all its ranks."""
    interval: int = 32
    """Steps from one agreement to the next."""
    timeout: float = 30.0
    """How long a rank waits for the votes of the others before it ends with an error that names who is missing."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 65536:
            raise ConfigError(f"the size of a lockstep group is {self.size}; it must lie in 1 ... 65536")
        if self.interval < 1 or self.timeout <= 0:
            raise ConfigError(
                f"lockstep ranks that agree every {self.interval} steps and wait {self.timeout} s make no sense; "
                "32 steps and 30 s work"
            )


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The data-parallel coordinator: three addresses to listen at, and for whom."""

    num_engines: int
    input_address: str
    """XPUB, to which engines subscribe (INIT's `coordinator_input`)."""
    output_address: str
    """PULL, to which engines report (INIT's `coordinator_output`)."""
    stats_address: str
    """XPUB, to which front-ends subscribe (INIT's `frontend_stats_publish_address`)."""
    lockstep: bool = False
    release: str = "0.33"
    """Of the front-ends: those before 0.27 read pairs of counts, not triples."""
    insecure_tcp: bool = False
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not 1 <= self.num_engines <= 65536:
            raise ConfigError(f"num_engines is {self.num_engines}; it must lie in 1 ... 65536")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine process. Times in seconds."""

    engine: str = "echo"
    """A built-in name, "module:factory" or "path.py:factory"."""
    model: str | None = None
    """Model directory, handed to a factory that names a parameter `model`."""
    options: dict[str, Any] = {}
    """Options of the engine, opaque to muro."""
    rank: int = 0
    generation: int = 0
    """How often the engine of this rank has been restarted; set by whoever starts it."""
    handshake_address: str = ""
    curve: CurveKeys | None = None
    """Keys for its sockets; None dials in the clear."""
    insecure_tcp: bool = False
    """Whether it may dial in the clear to another machine."""
    rejoin: bool = False
    """Whether an engine that dials in keeps its weights and dials again when its front-end has gone."""
    local: bool = True
    headless: bool = False
    peer_release: str = "auto"
    """Wire layout to write: "auto" or a release such as "0.25" or "0.33"."""
    lockstep: LockstepConfig | None = None
    """Given: the engines compute every step together, as those of a mixture-of-experts model whose experts are spread
    over the ranks do; each must say so of itself. None: they are independent."""
    limits: Limits = Limits()
    handshake_timeout: float = 300.0
    shutdown_timeout: float = 0.0
    """How long running requests may go on after a stop was asked for; 0 aborts them at once."""
    log_stats: bool = True
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not 0 <= self.rank <= 65535:
            raise ConfigError(f"rank is {self.rank}; it must lie in 0 ... 65535")
        if self.lockstep is not None and self.rank >= self.lockstep.size > 1:
            raise ConfigError(f"rank {self.rank} cannot be one of {self.lockstep.size} lockstep ranks")
        _check_finite(self, "handshake_timeout", "shutdown_timeout")
        if self.shutdown_timeout < 0:
            raise ConfigError(f"shutdown_timeout is {self.shutdown_timeout}; it must not be negative")


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an engine that was started here and has died gets a successor. Times in seconds."""

    policy: Literal["never", "on-failure", "always"] = "never"
    """on-failure: unless it ended with exit code 0, or because its settings are wrong."""
    backoff_first: float = 0.1
    """Between a death and the start of the successor; doubles with each further death within `window`."""
    backoff_max: float = 10.0
    budget: int = 5
    """Deaths within `window`, those of successors that did not even start included, that are followed by a restart;
    with one more it is a crash loop, and nothing is started any more."""
    window: float = 300.0

    def __post_init__(self) -> None:
        _check_finite(self, "backoff_first", "backoff_max", "window")
        if not 0 <= self.backoff_first <= self.backoff_max:
            raise ConfigError(
                f"backoff_first is {self.backoff_first}; it must lie in 0 ... backoff_max ({self.backoff_max})"
            )
        if self.budget < 0 or self.window <= 0:
            raise ConfigError(f"a restart budget of {self.budget} in {self.window} s makes no sense; 5 in 300 s works")


class RayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that Ray places: each is an actor with resources of its own, on any node of the cluster."""

    resources: dict[str, float] = msgspec.field(default_factory=lambda: {"CPU": 1.0})
    """What each rank asks for, in Ray's words: CPU, GPU, memory (bytes), or custom ones."""

    def __post_init__(self) -> None:
        bad = [name for name, amount in self.resources.items() if not name or not 0 <= amount < math.inf]
        if bad or not any(self.resources.values()):
            raise ConfigError(
                f"the resources of a rank on Ray are {self.resources}; they are amounts by name, at least one of them "
                'above 0: {"CPU": 1, "GPU": 1}'
            )


class ConnectConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A client and the engines behind it. Times in seconds."""

    engine: EngineConfig = EngineConfig()
    """Template for the engines that are spawned here; `rank` and `handshake_address` are filled in."""
    num_engines: int = 1
    start_rank: int = 0
    """The first of their ranks, where other front-ends have the ranks before it."""
    other_front_ends: bool = False
    """Whether other front-ends have further ranks, as is plain if these do not begin at 0: then the number stays."""
    num_local_engines: int | None = None
    """How many of them are spawned here (None: all); the others dial in."""
    data_parallel_balance: Literal["load", "prefix"] = "load"
    """Which engine gets a request: the one with the fewest of ours in flight; or, unless that one has clearly more to
    do than the others, the one that has computed the most of its prompt's beginning."""
    ray: RayConfig | None = None
    """Let Ray start all engines, on the machines of a cluster; None: those that are started are started here."""
    host: str | None = None
    """TCP host for engines that dial in; None keeps everything on ipc (with Ray: this machine's in its cluster)."""
    handshake_port: int = 0
    curve_dir: str | None = None
    """Directory with this front-end's CURVE keys and those of its engines (`muro keys new`); needs `host`."""
    curve_secret_fd: int | None = None
    """Inherited descriptor from which the front-end's secret key is read instead."""
    insecure_tcp: bool = False
    """Whether `host` may be reachable for others although nothing asks who they are."""
    startup_timeout: float = 600.0
    """How long an engine that is starting may show no progress before the start is given up."""
    close_timeout: float = 10.0
    """How long `close` waits for an engine that was asked to stop before it is killed."""
    restart: RestartPolicy = RestartPolicy()
    """What follows the death of an engine that was started here."""
    stall_limit: float | None = 60.0
    """How long an engine may owe something and do nothing before it is taken for stuck; None: as long as it likes."""
    socket_dir: str | None = None
    env: dict[str, str] = {}
    """Additional environment of the spawned engines."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_engines <= 65536:
            raise ConfigError(f"num_engines is {self.num_engines}; it must lie in 1 ... 65536")
        if not 0 <= self.start_rank <= 65536 - self.num_engines:
            raise ConfigError(f"start_rank is {self.start_rank}; it must lie in 0 ... {65536 - self.num_engines}")
        if self.lockstep:
            self._check_lockstep()
        if self.num_local_engines is not None and not 0 <= self.num_local_engines <= self.num_engines:
            raise ConfigError(f"num_local_engines is {self.num_local_engines}; it must lie in 0 ... {self.num_engines}")
        if self.ray is not None:
            self._check_ray()
        if self.host is None and self.ray is None and (self.curve_dir is not None or self.insecure_tcp):
            raise ConfigError(
                "curve_dir and insecure_tcp are for engines that dial in from elsewhere, and all are started here: "
                "host is not set (muro serve: --data-parallel-size-local says how many are started here)"
            )
        if self.curve_dir is not None and self.insecure_tcp:
            raise ConfigError("curve_dir and insecure_tcp exclude each other")
        if self.curve_dir is None and self.curve_secret_fd is not None:
            raise ConfigError("curve_secret_fd gives the secret key alone; curve_dir says where the peers' keys are")
        if self.host is None and self.ray is None and self.handshake_port:
            raise ConfigError(
                f"handshake_port is {self.handshake_port}, and host, the address at which engines dial it, is not set; "
                "127.0.0.1 is this machine's own"
            )
        _check_finite(self, "startup_timeout", "close_timeout", "stall_limit")
        if self.startup_timeout <= 0:
            raise ConfigError(f"startup_timeout is {self.startup_timeout}; it must be positive")
        if self.stall_limit is not None and self.stall_limit < 0:
            raise ConfigError(f"stall_limit is {self.stall_limit}; it must not be negative, and 0 or None means never")

    @property
    def num_local(self) -> int:
        """How many engines are started here."""
        return self.num_engines if self.num_local_engines is None else self.num_local_engines

    @property
    def lockstep(self) -> bool:
        """Whether the engines are a lockstep group."""
        return self.engine.lockstep is not None and self.num_engines > 1

    @property
    def restarts(self) -> RestartPolicy:
        """What follows a death. Of a lockstep group with engines elsewhere none can be started again by itself."""
        return self.restart if self.num_local == self.num_engines or not self.lockstep else RestartPolicy()

    def _check_ray(self) -> None:
        if self.num_local_engines not in (None, self.num_engines):
            raise ConfigError(
                f"num_local_engines is {self.num_local_engines}, but Ray starts all engines (muro serve: leave "
                "--data-parallel-size-local out with --data-parallel-backend ray)"
            )
        if self.lockstep:
            raise ConfigError(
                "lockstep engines cannot be placed by Ray yet; start them with --headless on each machine"
            )

    def _check_lockstep(self) -> None:
        """Refuse what a lockstep group cannot be. Raises ConfigError."""
        if self.start_rank:
            raise ConfigError(
                f"start_rank is {self.start_rank}, but lockstep engines have one front-end, from rank 0 on: hybrid and "
                "external load balancing are for independent engines"
            )
        if not self.num_local:
            raise ConfigError("of lockstep engines rank 0 is started here, and num_local_engines is 0")
        if self.curve_dir is not None and self.num_local < self.num_engines:
            raise ConfigError(
                "lockstep engines on several machines talk to each other and to the coordinator in the clear; keys "
                "(curve_dir) are not supported for them: start all here, or use insecure_tcp on a network to be trusted"
            )


def home(environ: Mapping[str, str] | None = None) -> Path:
    """Where models and caches live: $MURO_HOME, or muro/ in the user's cache directory."""
    env = os.environ if environ is None else environ
    if path := env.get("MURO_HOME"):
        return Path(path).expanduser()
    if path := env.get("XDG_CACHE_HOME"):
        return Path(path).expanduser() / "muro"
    return Path(env.get("HOME") or os.path.expanduser("~")) / ".cache" / "muro"


def socket_root(environ: Mapping[str, str] | None = None) -> str:
    """Directory below which private socket directories are made: $MURO_SOCKET_DIR, else the temp directory."""
    env = os.environ if environ is None else environ
    return env.get("MURO_SOCKET_DIR") or env.get("TMPDIR") or "/tmp"


def keep_quiet() -> None:
    """Have libraries send no usage statistics, unless the environment says that they shall: nothing here calls home."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def engine_environment(additional: Mapping[str, str], engines: int) -> dict[str, str]:
    """What is added to the environment of each of several engines on one machine.

    The CPUs that this process may use are shared out among them: MURO_CPUS says how many each has, and the number of
    threads of OpenMP (and so of BLAS libraries) and of Rayon follow. What is set already, there or here, stays.
    """
    share = str(max(1, available_cpus() // max(1, engines)))
    names = ("MURO_CPUS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")
    return {name: share for name in names if name not in os.environ} | dict(additional)


def ray_environment(additional: Mapping[str, str], ray: RayConfig) -> dict[str, str]:
    """What is added to the environment of each engine that Ray places: the CPUs that were asked for are its share."""
    cpus = str(max(1, math.ceil(ray.resources.get("CPU", 1))))
    return {"MURO_CPUS": cpus, "OMP_NUM_THREADS": cpus, "RAYON_NUM_THREADS": cpus} | dict(additional)


def prepare_ray() -> None:
    """Settings that Ray takes from the environment alone; what is set already stays. Call it before Ray is imported.

    A cluster that Ray starts for us reports its use to Ray's makers, unless told not to. And Ray ends a process that
    has not reached the head of its cluster for 60 s: a front-end shall outlive that, as all that is behind it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(10**8))


def engine_cpus(environ: Mapping[str, str] | None = None) -> int:
    """CPUs that an engine should use: $MURO_CPUS, or all that this process may. Raises ConfigError."""
    env = os.environ if environ is None else environ
    if (given := env.get("MURO_CPUS")) is None:
        return available_cpus()
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"MURO_CPUS is {given!r}; it is a number of CPUs, at least 1")
    return int(given)


def available_cpus(control_groups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs that this process may use: its affinity mask, cut down to the quotas of its control groups.

    Args:
        control_groups: where their file systems, version 2 or 1, are mounted.
        membership: names the groups of this process; their parents count, too.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for group in _groups(membership) if (quota := _quota(control_groups, group)) is not None]
    # A part of a CPU counts as one more thread: better throttled now and then than idle.
    return max(1, min([allowed, *map(math.ceil, quotas)]))


def _groups(membership: Path) -> set[str]:
    """The control groups of this process and their parents, relative to where they are mounted."""
    try:
        rows = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError:
        rows = []
    own = {row[2].strip("/") for row in rows if len(row) == 3 and (not row[1] or "cpu" in row[1].split(","))}
    return {""} | {str(path) for group in own for path in (Path(group), *Path(group).parents)}


def _quota(control_groups: Path, group: str) -> float | None:
    """CPUs granted by a control group; None if it sets no limit."""
    try:
        if (version_2 := control_groups / group / "cpu.max").exists():
            quota, period = version_2.read_text().split()
        else:
            version_1 = control_groups / "cpu" / group
            quota = (version_1 / "cpu.cfs_quota_us").read_text()
            period = (version_1 / "cpu.cfs_period_us").read_text()
        granted = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # no control group, or "max"
        return None
    return granted if granted > 0 else None


def child_environment(additional: Mapping[str, str]) -> dict[str, str]:
    """Environment of a child process: this process's own with `additional` entries on top."""
    return {**os.environ, **additional}
