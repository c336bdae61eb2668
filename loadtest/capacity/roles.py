"""A modelled worker that may change its role while it runs, as `services/worker.py` makes one.

It is a prefill and a decode model of one name. `common.worker.roles` decides which of them is in
force, and when the other one takes over; the model in force gets what the router sends. The change
itself takes no time: it is made when the worker holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from common.messages import Abort, Become, Decode, Hello, Load, Prefill, Role
from common.worker.actions import Action, Event, WorkerCore
from common.worker.roles import RoleCores
from loadtest.capacity.engine import Engine
from loadtest.capacity.virtual_time import VirtualTime
from loadtest.capacity.workers import DecodeModel, ModelWorker, PrefillModel, Request


class RoleModel:
    """As `ModelWorker`. `models` are one of each role; `changed` is called with the worker once it
    has another role."""

    def __init__(
        self,
        models: Sequence[PrefillModel | DecodeModel],
        role: Role,
        time: VirtualTime,
        changed: Callable[[RoleModel], None],
    ) -> None:
        self._models = {model.role: model for model in models}
        self._changed = changed
        cores = {model.role: model.core for model in models}
        #: Both of them, one in force.
        self.core = _Cores(cores, role, time, self._change)
        for model in models:
            model.core = self.core
        #: As of either model.
        self.identity, self.name = models[0].identity, models[0].name
        #: When it last took a role, in seconds.
        self._since = 0.0
        self._time = time

    @property
    def role(self) -> Role:
        return self.core.role

    @property
    def becomes(self) -> Role | None:
        """The role that it takes once it holds nothing; None = it keeps its own."""
        return self.core.becomes

    @property
    def engine(self) -> Engine:
        """Of the role in force."""
        return self._model.engine

    @property
    def _model(self) -> ModelWorker:
        return self._models[self.role]

    def hello(self) -> Hello:
        return msgspec.structs.replace(
            self._model.hello(),
            configured_role=self.core.configured,
            role_epoch=self.core.epoch,
            role_ms=(self._time.now - self._since) * 1000,
        )

    def load(self) -> Load:
        return self._model.load()

    def dispatch(self, message: Prefill | Decode, request: Request) -> None:
        self._model.dispatch(message, request)

    def abort(self, message: Abort) -> None:
        self._model.abort(message)

    def order(self, message: Become) -> None:
        self.core.handle(message, self._time.now)

    def _change(self) -> None:
        if self.core.change(self._time.now):
            self._since = self._time.now
            self._changed(self)


class _Cores(RoleCores):
    """Asks for the change once the actions of an event are carried out."""

    def __init__(
        self,
        cores: Mapping[Role, WorkerCore],
        role: Role,
        time: VirtualTime,
        change: Callable[[], None],
    ) -> None:
        super().__init__(cores, role, time.now)
        self._time = time
        self._change = change

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        if self.becomes is not None:
            self._time.after(0.0, self._change)
        return actions
