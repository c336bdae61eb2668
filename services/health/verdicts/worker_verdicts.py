"""Computes the verdict on each worker of this host from a round of probes; pure.

A worker's verdict has the hysteresis of the host's and depends only on the worker's own probes. A
bad verdict is sent in every round, because it expires at the worker; a recovery is sent once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from common.messages import HealthVerdict
from services.health.metrics.merge import Daemon
from services.health.verdicts.host_verdict import HealthLevel, Probe, VerdictHysteresis

RECENTLY_BAD = "it was not well a moment ago"


class WorkerVerdicts:
    def __init__(self) -> None:
        self._hystereses: dict[Daemon, VerdictHysteresis] = {}

    def round(
        self, workers: Collection[Daemon], probes: Iterable[Probe]
    ) -> dict[Daemon, HealthVerdict | None]:
        """The verdicts to send, by worker; None = the worker recovered."""
        probes_of: dict[Daemon, list[Probe]] = {worker: [] for worker in workers}
        for probe in probes:
            if probe.about in probes_of:
                probes_of[probe.about].append(probe)
        self._hystereses = {
            worker: self._hystereses.get(worker, VerdictHysteresis()) for worker in probes_of
        }
        changes: dict[Daemon, HealthVerdict | None] = {}
        for worker, hysteresis in self._hystereses.items():
            changed = hysteresis.round(probes_of[worker])
            if hysteresis.verdict is not HealthLevel.UP:
                reason = "; ".join(hysteresis.reasons) or RECENTLY_BAD
                changes[worker] = HealthVerdict(
                    reason=reason, down=hysteresis.verdict is HealthLevel.DOWN
                )
            elif changed:
                changes[worker] = None
        return changes
