"""What each API key may use: token buckets in predicted cost and in requests, and concurrency.

A bucket holds `burst_ms` worth of its rate. A request is charged its predicted cost when it is
admitted, and the difference to the real one when it is over, so a bucket may be in debt. A request
that costs more than the bucket holds is admitted when the bucket is full, or it never would be.
Accounts of keys without live requests are forgotten, the longest unused first, beyond `keys_max`; a
forgotten key starts with full buckets.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from common.messages import KeyLimits

OVERRIDES_MAX = 1_024


class Denied(NamedTuple):
    """`retry_after`: seconds."""

    sentence: str
    retry_after: float


class _Account:
    __slots__ = ("cost_left", "live", "refilled", "requests_left")

    def __init__(self, now: float) -> None:
        self.cost_left = float("inf")
        self.requests_left = float("inf")
        self.refilled = now
        self.live = 0


class Keys:
    """`overrides`: limits set by an operator, in force instead of those that gateways say."""

    def __init__(self, keys_max: int, burst_ms: float) -> None:
        self._keys_max = keys_max
        self._burst_min = burst_ms / 60_000
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        self.overrides: dict[str, KeyLimits] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def limits(self, key_id: str, said: KeyLimits | None) -> KeyLimits | None:
        return self.overrides.get(key_id, said)

    def denies(
        self, key_id: str, limits: KeyLimits | None, cost: float, stay: float, now: float
    ) -> Denied | None:
        """Whether this key must wait. `stay`: how long a request runs, in seconds."""
        if limits is None:
            return None
        account = self._account(key_id, limits, now)
        if limits.concurrency and account.live >= limits.concurrency:
            sentence = f"the key already runs {account.live} requests, as many as it may at once"
            return Denied(sentence, stay / limits.concurrency)
        if limits.requests_per_min and account.requests_left < 1:
            wait = (1 - account.requests_left) * 60 / limits.requests_per_min
            return Denied(f"the key is over {limits.requests_per_min:g} requests a minute", wait)
        needed = min(cost, limits.tokens_per_min * self._burst_min)
        if limits.tokens_per_min and account.cost_left < needed:
            wait = (needed - account.cost_left) * 60 / limits.tokens_per_min
            sentence = (
                f"the key is over {limits.tokens_per_min:g} tokens a minute: this request counts "
                f"{cost:.0f} (prompt plus what it will likely make, weighted)"
            )
            return Denied(sentence, wait)
        return None

    def charge(self, key_id: str, limits: KeyLimits | None, cost: float, now: float) -> None:
        """It was admitted; `ended` must follow."""
        if limits is None:
            return
        account = self._account(key_id, limits, now)
        account.live += 1
        account.requests_left -= 1
        account.cost_left -= cost

    def ended(self, key_id: str, cost_more: float) -> None:
        """A charged request is over and cost this much more than predicted (negative: less)."""
        account = self._accounts.get(key_id)
        if account is not None:
            account.live = max(0, account.live - 1)
            account.cost_left -= cost_more

    def shown(self, limit: int) -> list[dict[str, object]]:
        """The latest used keys."""
        latest = list(self._accounts.items())[-limit:]
        return [
            {
                "key_id": key_id,
                "live": account.live,
                "requests_left": _finite(account.requests_left),
                "cost_left": _finite(account.cost_left),
            }
            for key_id, account in reversed(latest)
        ]

    def _account(self, key_id: str, limits: KeyLimits, now: float) -> _Account:
        account = self._accounts.get(key_id)
        if account is None:
            account = self._accounts[key_id] = _Account(now)
            self._forget()
        self._accounts.move_to_end(key_id)
        minutes, account.refilled = (now - account.refilled) / 60, now
        account.requests_left = self._filled(
            account.requests_left, limits.requests_per_min, minutes, 1.0
        )
        account.cost_left = self._filled(account.cost_left, limits.tokens_per_min, minutes, 0.0)
        return account

    def _filled(self, left: float, per_min: float, minutes: float, least: float) -> float:
        if not per_min:
            return float("inf")
        return min(max(least, per_min * self._burst_min), left + per_min * minutes)

    def _forget(self) -> None:
        """Those with live requests are as few as the router's own bounds."""
        over = len(self._accounts) - self._keys_max
        for key_id in list(self._accounts)[: 2 * over if over > 0 else 0]:
            if not self._accounts[key_id].live:
                del self._accounts[key_id]

    def check_invariants(self, live: int) -> None:
        """`live`: charged requests that are not over."""
        assert sum(account.live for account in self._accounts.values()) <= live
        assert len(self._accounts) <= self._keys_max + live


def _finite(value: float) -> float | None:
    """None for no limit."""
    return None if value == float("inf") else round(value, 1)
