"""How long a decode step takes, by the streams in it and by the worker.

For each power of two of streams the mean of what was measured is a point, at the mean number of its
streams. Between two points lies a straight line; beyond them the line of best fit goes on, but a
step of fewer streams shrinks in proportion to them at most. From one point alone, half of a step is
thought to depend on the streams where there are fewer, and nothing where there are more. The curve
is of the fleet, as if all workers were of the speed that is usual among those measured: a faster
one often has more streams, and would make the curve flat.
"""

from __future__ import annotations

from typing import NamedTuple

from services.router.estimates.ratio import Ratio
from services.router.estimates.worker_speeds import WorkerSpeeds


class _Line(NamedTuple):
    points: list[tuple[float, float]]
    """Streams and seconds, ascending; at least one."""
    below: float
    """Seconds for each stream less than at the first."""
    beyond: float
    """Seconds for each more than at the last."""


class StepRate:
    """Seconds of one step."""

    def __init__(self, memory: int, prior: float) -> None:
        self._memory, self._prior = memory, prior
        #: By the power of two above the streams, ascending: seconds a token, and streams a token.
        self._rows: dict[int, tuple[Ratio, Ratio]] = {}
        self._line: _Line | None = None
        self.speeds = WorkerSpeeds(memory)
        #: The mean speed of those whose streams ended.
        self._usual = Ratio(memory)

    def ended(self, worker: str, batch: int, tokens: int, seconds: float) -> None:
        """A stream ended for which `worker` made `tokens` in `seconds`, among `batch` streams."""
        batch = max(1, batch)
        speed = self.speeds.measured(worker)
        self._usual.add(speed, 1)
        alike = seconds * speed / self._usual.value(1.0)
        bits = batch.bit_length()
        if bits not in self._rows:
            self._rows[bits] = Ratio(self._memory), Ratio(self._memory)
            self._rows = dict(sorted(self._rows.items()))
        spent, streams = self._rows[bits]
        spent.add(alike, tokens)
        streams.add(batch * tokens, tokens)
        self._line = None
        self.speeds.add(worker, self.seconds(batch) * tokens, seconds)

    def seconds(self, batch: int) -> float:
        """Of a typical worker with so many streams."""
        if not self._rows:
            return self._prior
        if self._line is None:
            self._line = _line_of(self._measured_points())
        points, below, beyond = self._line
        (x0, y0), (x1, y1) = points[0], points[-1]
        if batch <= x0:
            return max(y0 - below * (x0 - batch), y0 * batch / x0)
        if batch >= x1:
            return y1 + beyond * (batch - x1)
        after = next(i for i, (at, _) in enumerate(points) if at >= batch)
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        return y0 + (y1 - y0) * (batch - x0) / (x1 - x0)

    def streams_within(self, longest: float, slots: int) -> int:
        """The most streams, of `slots` at most, whose steps on a typical worker take no longer. 0:
        a single one's do. Where all that was measured is within it, one stream more than that may
        be tried."""
        fits, too_many = 0, slots + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if self.seconds(middle) <= longest:
                fits = middle
            else:
                too_many = middle
        if self._line is not None and self._line.points[-1][1] <= longest:
            fits = max(fits, min(slots, int(self._line.points[-1][0]) + 1))
        return fits

    def _measured_points(self) -> list[tuple[float, float]]:
        """Ascending; a longer step is not expected of fewer streams."""
        points, longest = list[tuple[float, float]](), 0.0
        for spent, streams in self._rows.values():
            longest = max(longest, spent.value(self._prior))
            points.append((streams.value(1.0), longest))
        return points


def _line_of(points: list[tuple[float, float]]) -> _Line:
    count = len(points)
    if count == 1:
        (at, seconds) = points[0]
        return _Line(points, seconds / (2 * at), 0.0)
    x, y = sum(at for at, _ in points) / count, sum(seconds for _, seconds in points) / count
    spread = sum((at - x) ** 2 for at, _ in points)
    slope = sum((at - x) * (seconds - y) for at, seconds in points) / spread
    return _Line(points, slope, slope)
