"""Engines and front-ends with one deliberate fault each, for those who build what examines them.

Each is the smallest correct peer with a hook that does something wrong. `BROKEN_ENGINES` and `BROKEN_FRONTENDS` say
what is wrong with each, and which case of `muro wire check` finds it. From a shell:

    python -m muro.testing.broken                          lists them
    python -m muro.testing.broken one-too-many ADDRESS     an engine that dials the handshake at ADDRESS
    python -m muro.testing.broken no-abort ADDRESS         a front-end that binds it, with a small HTTP API

The name `correct-engine` or `correct-frontend` starts the peer without a fault.
"""

from muro.testing.broken.engine_faults import BROKEN_ENGINES, BrokenEngine
from muro.testing.broken.frontend_faults import BROKEN_FRONTENDS, BrokenFrontend

__all__ = ["BROKEN_ENGINES", "BROKEN_FRONTENDS", "BrokenEngine", "BrokenFrontend"]
