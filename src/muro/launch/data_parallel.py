"""What the engines of one client share: a coordinator if they need one, and the place where lockstep ranks agree.

Lockstep ranks need a coordinator, and so do several front-ends over the same engines, which would not know of each
other's requests without. Independent ranks of a single front-end do without.
"""

from __future__ import annotations

import secrets

import msgspec

from muro.config import ConnectConfig, LockstepConfig
from muro.ids import Generation
from muro.launch.coordinator import CoordinatorKeeper, coordinator_config, free_addresses
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint
from muro.wire.handshake import Addresses


class DataParallel:
    """Opened before the first engine is started, closed when the last one has ended.

    Args:
        config: the settings of the client.
        front_ends: how many serve these engines.
    """

    def __init__(self, config: ConnectConfig, front_ends: int = 1) -> None:
        self._config = config
        self._directory = EndpointDirectory(config.socket_dir)
        self._all_here = config.num_local == config.num_engines
        self._coordinated = config.num_engines > 1 and (config.lockstep or front_ends > 1)
        if config.curve_dir is not None and not self._all_here:
            self._coordinated = False  # it talks in the clear; front-ends then balance by what they know themselves
        self.keeper: CoordinatorKeeper | None = None
        """Of the coordinator, if there is one."""

    def open(self) -> DataParallel:
        """Start the coordinator. Raises ConfigError, StartupError; `close` it all the same."""
        config = self._config
        if self._all_here and (config.lockstep or self._coordinated):
            self._directory.open()
        if not self._coordinated:
            return self
        settings = coordinator_config(
            config.num_engines,
            self._directory,
            None if self._all_here else config.host,
            lockstep=config.lockstep,
            insecure_tcp=config.insecure_tcp,
            log_level=config.engine.log_level,
        )
        self.keeper = CoordinatorKeeper(settings)
        self.keeper.start()
        return self

    @property
    def stats_address(self) -> str | None:
        """Where front-ends hear the coordinator."""
        return None if self.keeper is None else self.keeper.config.stats_address

    def addresses(self, sockets: Addresses) -> Addresses:
        """What INIT carries: the sockets of the front-ends, which are given, and the coordinator's."""
        if self.keeper is None:
            return sockets
        config = self.keeper.config
        return msgspec.structs.replace(
            sockets,
            coordinator_input=config.input_address,
            coordinator_output=config.output_address,
            frontend_stats_publish_address=config.stats_address,
        )

    def group(self, generation: Generation) -> LockstepConfig | None:
        """What lockstep engines of a generation must know; None for independent ones.

        Each generation has a place and a name of its own, so no vote of an earlier one is taken for one of it.
        """
        template = self._config.engine.lockstep
        if template is None or not self._config.lockstep:
            return None
        if self._all_here:
            self._directory.forget([f"group-{generation - 1}"])
            address, token = ipc_endpoint(self._directory, f"group-{generation}"), secrets.token_hex(8)
        else:  # others know the address from INIT, which has no word for a token
            address, token = free_addresses(self._config.host or "127.0.0.1", 1)[0], ""
        return msgspec.structs.replace(template, size=self._config.num_engines, address=address, token=token)

    def close(self, timeout: float) -> None:
        """End the coordinator, which gets `timeout` seconds after SIGTERM. Idempotent; nothing in a forked process."""
        if self.keeper is not None:
            self.keeper.stop(timeout)
        self._directory.close()
