"""What each API key may use: token buckets in cost and in requests, and concurrency.

The cost of a request is in tokens: the prompt tokens to compute, plus the tokens to make times
`output_cost` (2 by default, because a made token holds a slot and KV for a whole step). A bucket
holds `burst_ms` worth of its rate. A request is charged its predicted cost when it is admitted, and
the difference to its actual cost when it is over, so a bucket may be in debt. A request that costs
more than the bucket can hold is admitted when the bucket is full; otherwise it would wait forever.

A key whose requests may go to two cells (`docs/sharding.md`) has an account in each, which cannot
see each other. So the second one gives it no more than `CELL_SHARE` of its limits while the first
serves it too; and one that takes over from the other, or back, gives it no more than it can have
saved up since then, and that share of what it may. All in all a key gets 1.05 times its limits at
most.

Beyond `keys_max`, the accounts of keys without live requests are forgotten, the longest unused
first; a forgotten key starts again with full buckets.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from common.messages import KeyLimits, OtherCell
from services.router.records.attempt import Attempt

OVERRIDES_MAX = 1_024
CELL_SHARE = 0.05
"""Of what a key may use: what the second of its two cells may add."""
ONE_CELL = OtherCell()


def predicted_cost(prompt_tokens: int, output_tokens: int, output_cost: float) -> float:
    return prompt_tokens + output_cost * output_tokens


def actual_cost(attempt: Attempt, output_cost: float) -> float:
    """The cost of an attempt that is over: the prompt tokens that its worker did not find in a
    cache, and the tokens that were made."""
    prompt = attempt.request.prompt_tokens
    if attempt.prefill_report is not None:
        prompt -= attempt.prefill_report.cached_tokens
    elif attempt.decode_report is not None:
        prompt -= attempt.decode_report.cached_tokens
    made = attempt.end_report.completion_tokens if attempt.end_report is not None else 0
    return max(0, prompt) + output_cost * made


def by_share(limits: KeyLimits) -> KeyLimits:
    """In a cell that a key uses only where its own has no room. Requests at once are counted over
    both, as far as they are known."""
    return msgspec.structs.replace(
        limits,
        requests_per_min=CELL_SHARE * limits.requests_per_min,
        tokens_per_min=CELL_SHARE * limits.tokens_per_min,
    )


class Denial(NamedTuple):
    """Why a key must wait."""

    sentence: str
    #: Seconds until it may try again.
    retry_after: float


class _Account:
    """What one key has left. `live`: its charged requests that are not over."""

    __slots__ = ("cost_left", "live", "refilled", "requests_left")

    def __init__(self, now: float) -> None:
        self.cost_left = float("inf")
        self.requests_left = float("inf")
        self.refilled = now
        self.live = 0


class KeyAccounts:
    """The accounts of all keys that have limits."""

    def __init__(self, keys_max: int, burst_ms: float) -> None:
        self._keys_max = keys_max
        self._burst_min = burst_ms / 60_000
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        #: By key id, limits that an operator set; they replace those that gateways report.
        self.overrides: dict[str, KeyLimits] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def limits(self, key_id: str, reported: KeyLimits | None) -> KeyLimits | None:
        """The limits in force. `reported`: those that the gateway sent."""
        return self.overrides.get(key_id, reported)

    def check(
        self,
        key_id: str,
        limits: KeyLimits | None,
        cost: float,
        residence_s: float,
        now: float,
        other: OtherCell = ONE_CELL,
    ) -> Denial | None:
        """Why this key must wait; None: it need not. `residence_s`: seconds that a request runs.
        `other`: what the key does in another cell."""
        if limits is None:
            return None
        account = self._account(key_id, limits, now)
        live, most = account.live + other.live, limits.concurrency
        shared = other.serves and account.live >= max(1, int(CELL_SHARE * most))
        if most and (live >= most or shared):
            sentence = f"the key already runs {live} requests, as many as it may at once"
            return Denial(sentence, residence_s / most)
        if limits.requests_per_min and account.requests_left < 1:
            wait = (1 - account.requests_left) * 60 / limits.requests_per_min
            return Denial(f"the key is over {limits.requests_per_min:g} requests a minute", wait)
        needed = min(cost, limits.tokens_per_min * self._burst_min)
        if limits.tokens_per_min and account.cost_left < needed:
            wait = (needed - account.cost_left) * 60 / limits.tokens_per_min
            sentence = (
                f"the key is over {limits.tokens_per_min:g} tokens a minute: this request counts "
                f"{cost:.0f} (prompt plus what it will likely make, weighted)"
            )
            return Denial(sentence, wait)
        return None

    def take_over(
        self, key_id: str, limits: KeyLimits | None, cost: float, seconds: float, now: float
    ) -> None:
        """The key used another cell until `seconds` ago, and has saved up nothing before. It finds
        enough for this request at least."""
        if limits is None:
            return
        account = self._account(key_id, limits, now)
        minutes = CELL_SHARE * self._burst_min + seconds / 60
        requests, tokens = minutes * limits.requests_per_min, minutes * limits.tokens_per_min
        account.requests_left = min(account.requests_left, max(1.0, requests))
        account.cost_left = min(account.cost_left, max(cost, tokens))

    def charge(self, key_id: str, limits: KeyLimits | None, cost: float, now: float) -> None:
        """A request was admitted; `ended` must follow."""
        if limits is None:
            return
        account = self._account(key_id, limits, now)
        account.live += 1
        account.requests_left -= 1
        account.cost_left -= cost

    def ended(self, key_id: str, cost_more: float) -> None:
        """A charged request is over; it cost `cost_more` more than predicted (negative: less)."""
        account = self._accounts.get(key_id)
        if account is not None:
            account.live = max(0, account.live - 1)
            account.cost_left -= cost_more

    def rows(self, limit: int) -> list[dict[str, object]]:
        """The accounts for an operator, the latest used first."""
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
        """Removes unused accounts over `keys_max`; the router bounds those with live requests."""
        over = len(self._accounts) - self._keys_max
        for key_id in list(self._accounts)[: 2 * over if over > 0 else 0]:
            if not self._accounts[key_id].live:
                del self._accounts[key_id]

    def check_invariants(self, live: int) -> None:
        """Raises AssertionError. `live`: charged requests that are not over."""
        assert sum(account.live for account in self._accounts.values()) <= live
        assert len(self._accounts) <= self._keys_max + live


def _finite(value: float) -> float | None:
    """None: no limit."""
    return None if value == float("inf") else round(value, 1)
