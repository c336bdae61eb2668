"""All state of the admission to one model except the queue, and the figures that its rules read."""

from __future__ import annotations

from collections.abc import Callable

from common.config import AdmissionConfig
from common.identity import AttemptKey
from services.router.admission.gates import ProportionalShedder
from services.router.admission.keys import KeyAccounts
from services.router.admission.retry_budget import RetryBudget
from services.router.admission.retry_reservations import RetryReservations


class Admission:
    """Only the rules change it. The figures in its last part are those of the last Tick."""

    def __init__(
        self, config: AdmissionConfig, keys: KeyAccounts, uniform: Callable[[], float]
    ) -> None:
        self.config = config
        #: Of all models.
        self.keys = keys
        self.retry_budget = RetryBudget(
            config.retry_share, config.retry_burst, config.retry_per_min
        )
        self.shedder = ProportionalShedder(config.thinning_debt)
        self.reservations = RetryReservations(config)
        #: Draws from [0, 1).
        self.uniform = uniform
        #: Attempts whose prompt P has computed and that have no first token yet, with the instant
        #: at which P ended, oldest first.
        self.awaiting_first_token: dict[AttemptKey, float] = {}
        #: Live attempts that are charged to their key.
        self.charged: set[AttemptKey] = set()
        #: Live attempts by priority class.
        self.live = [0, 0, 0]

        #: Healthy share of the decode slots.
        self.capacity = 1.0
        #: Share of the decode workers' KV that is in use.
        self.kv_used = 0.0
        #: Entries of `awaiting_first_token` that are overdue.
        self.overdue_starts = 0
        #: Why nothing new is admitted; None = it is.
        self.closed: str | None = None
        #: The most slots that one decode worker has.
        self.largest_worker_slots = 0
