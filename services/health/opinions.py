"""From a round of probes to what each worker of this host is told of itself; pure.

Each has a verdict of its own, with the hysteresis of the host's; only what was measured of it
counts. What stands is told every round, for a worker forgets it; that all is well is told once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from common.messages import Opinion
from services.health.merge import Daemon
from services.health.verdict import Judge, Probe, Verdict

WELL_OF_LATE = "it was not well a moment ago"


class Opinions:
    def __init__(self) -> None:
        self._judges: dict[Daemon, Judge] = {}

    def round(
        self, workers: Collection[Daemon], probes: Iterable[Probe]
    ) -> dict[Daemon, Opinion | None]:
        """What is to be told, to whom."""
        of: dict[Daemon, list[Probe]] = {worker: [] for worker in workers}
        for probe in probes:
            if probe.about in of:
                of[probe.about].append(probe)
        self._judges = {worker: self._judges.get(worker, Judge()) for worker in of}
        told: dict[Daemon, Opinion | None] = {}
        for worker, judge in self._judges.items():
            changed = judge.round(of[worker])
            if judge.verdict is not Verdict.UP:
                reason = "; ".join(judge.reasons) or WELL_OF_LATE
                told[worker] = Opinion(reason=reason, down=judge.verdict is Verdict.DOWN)
            elif changed:
                told[worker] = None
        return told
