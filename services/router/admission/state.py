"""All state of admission but the queue, and the figures that its rules read."""

from __future__ import annotations

from common.config import AdmissionConfig
from services.router.admission.gates import Thinning
from services.router.admission.jitter import Jitter
from services.router.admission.keys import Keys
from services.router.admission.retry_budget import RetryBudget
from services.router.admission.returns import Returns


class Admission:
    """`handed`: tries whose prompt P has computed and whose first token is not there, with when
    that was, oldest first. `charged`: live tries that their key pays for. `live`: tries that are
    not over, by class. As of the last Tick: `closed`, why nothing new is admitted, or None;
    `capacity`, the share of decode slots that is healthy; `kv_used`, of decode KV in use; `stuck`,
    the overdue entries of `handed`; `largest_worker`, the most slots that one decode worker has."""

    def __init__(self, config: AdmissionConfig, seed: int) -> None:
        self.config = config
        self.keys = Keys(config.keys_max, config.key_burst_ms)
        self.retry_budget = RetryBudget(
            config.retry_share, config.retry_burst, config.retry_per_min
        )
        self.thinning = Thinning(config.thinning_debt)
        self.returns = Returns(config)
        self.jitter = Jitter(seed)
        self.handed: dict[tuple[str, int], float] = {}
        self.charged: set[tuple[str, int]] = set()
        self.live = [0, 0, 0]
        self.capacity = 1.0
        self.kv_used = 0.0
        self.stuck = 0
        self.closed: str | None = None
        self.largest_worker = 0
