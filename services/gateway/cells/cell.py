"""One cell, as a gateway knows it: its core, and since when it can serve which model."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.gateway.requests.core import Core


@dataclass(slots=True)
class Cell:
    """Instants are seconds of the core's monotonic clock."""

    name: str
    core: Core
    #: Since when it has been lost, by model; a model that it can serve has none.
    lost_since: dict[str, float] = field(default_factory=dict)
    #: Since when it serves again, by model; none for one that it was never lost for.
    back_since: dict[str, float] = field(default_factory=dict)
    #: Requests that were opened here, and that came from another cell.
    home: int = 0
    spilled: int = 0

    def serves(self, model: str) -> bool:
        fleet = self.core.fleet_of(model)
        return self.core.router_up and fleet is not None and fleet.ready

    def look(self, now: float) -> None:
        """Its router came, went, or told of a model."""
        for model in {*self.core.lifecycle.fleets, *self.lost_since}:
            if not self.serves(model):
                self.lost_since.setdefault(model, now)
            elif self.lost_since.pop(model, None) is not None:
                self.back_since[model] = now

    def lost_at(self, model: str, now: float) -> float:
        """Since when it cannot serve this model. It cannot now."""
        return self.lost_since.setdefault(model, now)

    def seconds_lost(self, model: str, now: float) -> float:
        """0 if it can serve the model."""
        return 0.0 if self.serves(model) else now - self.lost_at(model, now)
