"""Which role a worker has, and when it takes the other one. Sans-IO.

Theory of operation: a worker daemon has a core for each role over one engine, and one of them is in
force; of a mixed worker both are (`both_cores.py`). The other is empty: it gets no event, and a
role is changed only while what is in force holds nothing. What an engine keeps besides, its prefix
cache and its store, does not depend on the role and stays. An order (`Become`) waits until the
worker is empty; meanwhile it serves on in its present role. The shell takes the role once all
actions of an event are carried out, and then says Hello, so that routers hear every end of the old
role before they hear of the new one.

Each change is an epoch. A router that has not heard of it yet may still send what belongs to the
role before: that is dropped, and the KV of such a prompt is refused, so that no D waits for it. The
router gives it up when it hears the Hello. After a restart the worker has the role of the fleet
file again.
"""

from __future__ import annotations

from collections.abc import Mapping

from common.engine.port import engine_key
from common.messages import Become, Decode, HandOver, HeldAttempt, Prefill, Role
from common.worker.actions import (
    AbortInEngine,
    Action,
    Dispatched,
    Event,
    HandOverKept,
    WorkerCore,
)
from common.worker.both_cores import BothCores

MESSAGES_OF: dict[Role, tuple[type, ...]] = {
    Role.PREFILL: (Prefill,),
    Role.DECODE: (Decode,),
    Role.MIXED: (Prefill, Decode),
}


class RoleCores:
    """A `WorkerCore` that is the core in force. `cores`: one for prefill and one for decode, as far
    as the worker may have these roles. `warm`: it keeps its role, because it sleeps and wakes as a
    decode worker. `mixed`: it begins in both."""

    def __init__(
        self,
        cores: Mapping[Role, WorkerCore],
        role: Role,
        now: float,
        *,
        warm: bool = False,
        mixed: bool = False,
    ) -> None:
        self._cores = cores
        self._both: BothCores | None = None
        if Role.PREFILL in cores and Role.DECODE in cores:
            self._both = BothCores(cores[Role.PREFILL], cores[Role.DECODE])
        self._warm = warm
        #: That of its table in the fleet file.
        self.configured = role
        self.role = Role.MIXED if mixed and self._both is not None else role
        #: How often it has changed its role.
        self.epoch = 0
        #: When it took its role, in seconds, monotonic.
        self.since = now
        #: The role that it takes once it holds nothing; None: it keeps its own.
        self.becomes: Role | None = None
        self._dropped = 0

    @property
    def can_change(self) -> bool:
        """Whether it may be ordered to take another role."""
        return len(self._cores) > 1 and not self._warm

    @property
    def dropped(self) -> int:
        return self._dropped + sum(core.dropped for core in self._cores.values())

    @property
    def active(self) -> int:
        return self._core.active

    def held_attempts(self) -> list[HeldAttempt]:
        return self._core.held_attempts()

    def held_attempt(self, request_id: str, attempt: int) -> HeldAttempt | None:
        return self._core.held_attempt(request_id, attempt)

    def holds(self, key: str) -> bool:
        return self._core.holds(key)

    def handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Become():
                self._ordered(event)
                return []
            case Dispatched() if not isinstance(event.message, MESSAGES_OF[self.role]):
                return self._of_another_role(event.message)
            case Dispatched() if self._has(event.message):
                self._dropped += 1
                return []
            case HandOver() if self.role is Role.PREFILL:
                return [HandOverKept(event.ticket, event.kept_attempt)]
            case _:
                return self._core.handle(event, now)

    def change(self, now: float) -> bool:
        """Takes the role that was ordered, if nothing is held. Returns whether it did."""
        if self.becomes is None or self._core.active:
            return False
        self.role, self.becomes = self.becomes, None
        self.epoch, self.since = self.epoch + 1, now
        return True

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        for role, core in self._cores.items():
            assert role in self.role.parts or not core.active, f"the {role} core is not empty"
        if self._both is not None:
            self._both.check_invariants()
        assert self.becomes is not self.role

    @property
    def _core(self) -> WorkerCore:
        if self.role is Role.MIXED and self._both is not None:
            return self._both
        return self._cores[self.role]

    def _has(self, message: Prefill | Decode) -> bool:
        """Whether it was given before, for whichever role."""
        return self._core.holds(engine_key(message.request_id, message.attempt))

    def _ordered(self, order: Become) -> None:
        unknown = order.role not in MESSAGES_OF
        if not self.can_change or unknown or order.epoch != self.epoch + 1:
            self._dropped += 1
            return
        self.becomes = order.role if order.role is not self.role else None

    def _of_another_role(self, message: Prefill | Decode) -> list[Action]:
        """A router placed it that did not know of the present role yet."""
        self._dropped += 1
        if isinstance(message, Decode):
            return []
        return [AbortInEngine(message.request_id, message.attempt)]
