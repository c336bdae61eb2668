"""The points of the dashboard's charts, one for each poll of the router. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from common.net.admin_status import Status

POINTS_MAX = 300
Row = dict[str, Any]
Point = dict[str, float | None]


class Series:
    """The latest points, at most POINTS_MAX. A request that ended counts towards goodput if its
    TTFT is within the status field `ttft_slo_ms`; without that limit every one counts."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._before: tuple[float, dict[str, int]] | None = None

    def add(self, now: float, unix_ms: int, status: Status, recent: Sequence[Row]) -> Point | None:
        """`recent`: rows of `explain list=recent`, the newest first. The first poll gives no
        point, since rates are differences; nor does the first one after the router restarted."""
        totals = msgspec.structs.asdict(status.totals) | {"refused": sum(status.refused.values())}
        before, self._before = self._before, (now, totals)
        if before is None or any(totals[name] < count for name, count in before[1].items()):
            return None
        seconds = max(1e-6, now - before[0])
        ended = [
            row for row in recent if row["ago_ms"] <= seconds * 1000 and row["outcome"] == "ended"
        ]
        slo = status.ttft_slo_ms
        good = [row for row in ended if not slo or row["ttft_ms"] <= slo]
        rates = {name: (totals[name] - count) / seconds for name, count in before[1].items()}
        share = len(good) / len(ended) if ended else 1.0
        point: Point = {
            "unix_ms": float(unix_ms),
            "ttft_p50": quantile([row["ttft_ms"] for row in ended], 0.5),
            "ttft_p99": quantile([row["ttft_ms"] for row in ended], 0.99),
            "tpot_p50": quantile([row["tpot_ms"] for row in ended if row["tpot_ms"]], 0.5),
            "tpot_p99": quantile([row["tpot_ms"] for row in ended if row["tpot_ms"]], 0.99),
            "goodput": round(rates["ended"] * share, 3),
            "ended": round(rates["ended"], 3),
            "refused": round(rates["refused"], 3),
            "failed": round(rates["failed"], 3),
            "active": float(status.active),
            "queued": float(status.queued),
            "prefill": float(status.prefill_ready),
            "decode": float(status.decode_ready),
        }
        self.points.append(point)
        return point


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share is not above; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
