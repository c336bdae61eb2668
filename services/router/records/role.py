"""Which role a worker is to have, beside the one that it has."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import Hello, Role


@dataclass(slots=True)
class RoleState:
    """Of one incarnation of a worker. An instant is in seconds on the core's clock."""

    #: The role of its table in the fleet file; None of a worker that cannot change its role.
    configured: Role | None
    #: How often it has changed its role, as its Hello says.
    epoch: int
    #: Since when it has its role.
    since: float
    #: The role that it takes once it holds nothing, as its Beats say; None = it keeps its own.
    becomes: Role | None = None
    #: An order that its Beats do not repeat yet; None = there is none. The role that it has takes
    #: an order back.
    ordered: Role | None = None

    @classmethod
    def from_hello(cls, hello: Hello, now: float) -> RoleState:
        return cls(hello.configured_role, hello.role_epoch, now - hello.role_ms / 1000)
