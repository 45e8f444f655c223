"""Places on a Ray cluster. The only file that imports ray, and only when such a cluster is opened.

Each rank has a placement group of its own, of one bundle with the resources asked for, and in it an actor that hosts it
(`host.RankHost`). So ranks come and go by themselves, and a rank whose node has died is placed wherever there is room.
Ray never restarts an actor: that is the supervisor's.

Invariants:
- A process is connected to Ray once, for all its clients; whoever was first to need it has made the connection, and the
  last one ends it, unless the program had connected itself before.
- That happens in a thread of its own ("muro-ray"), which lives as long as the connection: what Ray starts for us ends
  with the thread that started it (PR_SET_PDEATHSIG).
- Signals stay ours: Ray would take over SIGTERM, in Python and natively.
- Nothing is asked of Ray once the connection has ended: Ray would start a cluster to answer.
- Orders, which hold keys, are arguments of a call from this process to the actor: they stand on no command line, in no
  log and in no table of the cluster. They are as secret as Ray's own connections (RAY_USE_TLS).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from muro.cluster.handle import RankHandle
from muro.cluster.host import RankHost
from muro.cluster.place import AwayError
from muro.cluster.report import Order
from muro.cluster.signals import signals_untouched
from muro.config import RayConfig, prepare_ray
from muro.errors import ConfigError, EngineDeadError, MissingExtraError, StartupError
from muro.ids import EngineRank
from muro.launch.plan import LaunchPlan
from muro.observe.log import Thresholds
from muro.version import VERSION

_CALLS_AT_ONCE = 4
"""A report, a stack dump, a request to stop, a kill."""
_FIRST_LINES = 400
_SHUTDOWN_TIMEOUT = 20.0

_lock = threading.RLock()
_users = 0
_connection: _Connection | None = None


class RayCluster:
    """A `launch.handle.Spawner`.

    Args:
        config: what each rank asks for.
    """

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        self._open = False
        self.address = ""
        """Of this machine, as the nodes of the cluster see it."""

    def open(self) -> RayCluster:
        """Connect to the cluster that RAY_ADDRESS names, or that runs here, or else start one here.

        Raises MissingExtraError, StartupError, ConfigError.
        """
        global _users, _connection  # noqa: PLW0603 - a process has one connection to Ray
        prepare_ray()
        try:
            import ray
            import ray.util
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"ranks on Ray (no module {error.name!r})", "ray") from None
        with _lock:
            if _connection is None:
                _connection = _Connection(ray).open()
            _users += 1
        self._open = True
        self.address = ray.util.get_node_ip_address()
        return self

    def start(self, plan: LaunchPlan, rank: EngineRank) -> RankHandle:
        order = Order(
            version=VERSION,
            target=plan.target,
            payload=plan.payload(rank),
            title=plan.title(rank),
            env=plan.env,
            name=plan.name(rank),
            generation=plan.local[rank].generation,
            thresholds=Thresholds.now(),
        )
        return RankHandle(order, RayPlace(self._config.resources)).open()

    def close(self) -> None:
        global _users, _connection  # noqa: PLW0603
        with _lock:
            if self._open:
                self._open = False
                _users -= 1
                if not _users and _connection is not None:
                    _connection.close()
                    _connection = None


class RayPlace:
    """A `place.Place`: a placement group of one bundle, and the actor in it."""

    def __init__(self, resources: dict[str, float]) -> None:
        self._resources = {name: amount for name, amount in resources.items() if amount}
        self._group: Any = None
        self._ready: Any = None
        self._actor: Any = None
        self.words = f"a place with {_amounts(self._resources)}"
        self.where = ""

    def ask(self) -> None:
        with _asking() as ray:
            self.words += f" (the cluster has {_amounts(ray.cluster_resources()) or 'nothing'})"
            self._group = ray.util.placement_group([self._resources])
            self._ready = self._group.ready()

    def is_given(self, timeout: float) -> bool:
        with _asking() as ray:
            return bool(ray.wait([self._ready], timeout=timeout)[0])

    def occupy(self) -> None:
        with _asking() as ray:
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=0
            )
            table = ray.util.placement_group_table(self._group)
            node = next(iter(table["bundles_to_node_id"].values()), "")
            self.where = next((one["NodeManagerAddress"] for one in ray.nodes() if one["NodeID"] == node), "")
            self._actor = (
                ray.remote(RankHost)
                .options(
                    **_options(self._resources),
                    max_concurrency=_CALLS_AT_ONCE,
                    max_restarts=0,
                    max_task_retries=0,
                    scheduling_strategy=strategy,
                )
                .remote()
            )

    def call(self, method: str, *arguments: bytes) -> Any:
        with _asking():
            return getattr(self._actor, method).remote(*arguments)

    def answer(self, call: Any, timeout: float) -> bytes | None:
        with _asking() as ray:
            if not ray.wait([call], timeout=timeout)[0]:
                return None
            return ray.get(call) or b""

    def leave(self) -> None:
        with contextlib.suppress(EngineDeadError, AwayError), _asking() as ray:
            if self._group is not None:
                ray.util.remove_placement_group(self._group)


@contextlib.contextmanager
def _asking() -> Iterator[Any]:
    """Ray, and its errors as ours. Raises EngineDeadError, AwayError."""
    import ray
    import ray.exceptions
    import ray.util.scheduling_strategies

    if not ray.is_initialized():
        raise EngineDeadError("this process is no longer connected to Ray")
    try:
        yield ray
    except ray.exceptions.ActorUnavailableError as error:
        raise AwayError(_first_line(error)) from None
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise EngineDeadError(f"its host failed: {type(cause).__name__}: {_first_line(cause)}") from None
    except ray.exceptions.RayActorError as error:
        raise EngineDeadError(f"its actor or the node of that has died: {_first_line(error)}") from None
    except (ray.exceptions.RayError, RuntimeError, ValueError, AttributeError) as error:
        raise EngineDeadError(f"Ray refused: {type(error).__name__}: {_first_line(error)}") from None


class _Connection:
    """This process's connection to Ray, made and ended in a thread of its own."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._tried = threading.Event()
        self._done = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._hold, name="muro-ray", daemon=True)

    def open(self) -> _Connection:
        """Raises StartupError, ConfigError."""
        if not self._ray.is_initialized():
            self._thread.start()
            self._tried.wait()
        if (failure := self._failure) is not None:
            raise StartupError(
                f"no connection to a Ray cluster: {type(failure).__name__}: {failure}; RAY_ADDRESS says which one, and "
                "this machine must be one of its nodes (`ray start`)",
                phase="spawn",
            ) from failure
        if self._ray.util.client.ray.is_connected():
            self.close()
            raise ConfigError(
                "this process talks to its cluster through Ray Client (ray://), so the ranks could not dial it; run "
                "muro on a node of the cluster"
            )
        return self

    def close(self) -> None:
        """End it, unless the program had made it itself."""
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join(_SHUTDOWN_TIMEOUT)

    def _hold(self) -> None:
        try:
            with signals_untouched():
                self._ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            self._failure = error
            return
        finally:
            self._tried.set()
        self._done.wait()
        if self._ray.is_initialized():
            self._ray.shutdown()


def _options(resources: dict[str, float]) -> dict[str, Any]:
    """Resources as an actor's options."""
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    own = {names[name]: amount for name, amount in resources.items() if name in names}
    return {"num_cpus": 0} | own | {"resources": {name: n for name, n in resources.items() if name not in names}}


def _amounts(resources: dict[str, float]) -> str:
    """Resources in words, without those that name nodes."""
    shown = [(name, n) for name, n in sorted(resources.items()) if not name.startswith(("node:", "object_store"))]
    return ", ".join(f"{name} {n:g}" for name, n in shown)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:_FIRST_LINES]
