"""Whether a worker of a model should change its role, and why not. Sans-IO.

Theory of operation: every `LOOK_SECONDS` the goodput on paper of the present split is compared with
that of the splits that are one change of role away, for the load of the last half minute and of the
last ten minutes. A change is worth making only if both windows agree on it, by more than
`gain_min` each: the short one says that the need is there, the long one that it is no wave. Where
the workers serve all that is asked for, no split serves more, and nothing changes. Nor does it
while KV takes longer on the wire than to compute. After a change there is none for `cooldown_ms`.
The verdict is kept, for `baton ctl balance`.
"""

from __future__ import annotations

from typing import NamedTuple

from common.config import BalanceConfig
from common.messages import Role
from services.router.fleet.balance.goodput import (
    Capacity,
    Curves,
    Split,
    capacity,
    neighbours,
    wire_decides,
)
from services.router.fleet.balance.mix import Mix, MixWindow

LOOK_SECONDS = 5.0
SHORT_SECONDS, LONG_SECONDS = 30.0, 600.0
REQUESTS_MIN = 20
"""Fewer requests in the short window say too little."""


class Option(NamedTuple):
    """A split and what it could serve."""

    split: Split
    #: Requests per second, for the load of each window, the short one first.
    goodput: tuple[float, ...]


class Verdict(NamedTuple):
    """One look. An instant is in seconds on the core's clock."""

    at: float
    #: The load of the short and of the long window; empty while too little was seen.
    mixes: tuple[Mix, ...]
    #: The present split first, then its neighbours.
    options: tuple[Option, ...]
    #: The role that one worker should take; None = nothing should change.
    role: Role | None
    #: The reason, as one sentence.
    sentence: str


class Balance:
    """Of one model."""

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._windows = (MixWindow(SHORT_SECONDS), MixWindow(LONG_SECONDS))
        self._changed: float | None = None
        #: The latest look; None = there was none yet.
        self.verdict: Verdict | None = None

    @property
    def on(self) -> bool:
        """Whether it looks at all."""
        return self._config.mode != "off"

    def add_request(self, kv_tokens: int, now: float) -> None:
        """As `MixWindow.add_request`."""
        if self.on:
            for window in self._windows:
                window.add_request(kv_tokens, now)

    def add_prompt(self, tokens: int, now: float) -> None:
        """As `MixWindow.add_prompt`."""
        if self.on:
            for window in self._windows:
                window.add_prompt(tokens, now)

    def add_output(self, tokens: int, now: float) -> None:
        """As `MixWindow.add_output`."""
        if self.on:
            for window in self._windows:
                window.add_output(tokens, now)

    def due(self, now: float) -> bool:
        return self.on and (self.verdict is None or now - self.verdict.at >= LOOK_SECONDS)

    def record_change(self, now: float) -> None:
        """A worker of the model changed its role, by whosever order."""
        self._changed = now

    def hold_back(self, why: str) -> None:
        """No worker can do what the latest look would have done."""
        if self.verdict is not None:
            sentence = f"{self.verdict.sentence}; but {why}"
            self.verdict = self.verdict._replace(role=None, sentence=sentence)

    def look(self, split: Split, curves: Curves, now: float) -> Verdict:
        """At the ready workers."""
        mixes = [window.mix(now) for window in self._windows]
        known = tuple(mix for mix in mixes if mix is not None)
        options: tuple[Option, ...] = ()
        role: Role | None = None
        if len(known) < len(mixes) or known[0].requests < REQUESTS_MIN:
            requests = known[0].requests if known else 0
            sentence = (
                f"{requests} requests in {SHORT_SECONDS:.0f} s say too little: "
                f"{REQUESTS_MIN} are needed"
            )
        elif min(split) < 1:
            sentence = f"{split.name}: there are not both, prefill and decode workers"
        else:
            tried = (split, *neighbours(split))
            options = tuple(_option(one, known, curves) for one in tried)
            role, sentence = self._judge(options, known, curves)
            since = None if self._changed is None else now - self._changed
            if role is not None and since is not None and since < self._config.cooldown_ms / 1000:
                role, sentence = None, f"{sentence}; but a role changed {since:.0f} s ago"
        self.verdict = Verdict(now, known, options, role, sentence)
        return self.verdict

    def _judge(
        self, options: tuple[Option, ...], mixes: tuple[Mix, ...], curves: Curves
    ) -> tuple[Role | None, str]:
        now, *others = options
        if not others:
            return None, f"{now.split.name}: one of each role stays"
        best = max(others, key=lambda option: min(_gains(option, now)))
        gains, name = _gains(best, now), best.split.name
        limits = capacity(now.split, mixes[0], curves)
        short, long = f"{SHORT_SECONDS:.0f} s", f"{LONG_SECONDS / 60:.0f} min"
        told = f"{_percent(gains[0])} in the last {short} and {_percent(gains[1])} in {long}"
        role = Role.PREFILL if best.split.prefills > now.split.prefills else Role.DECODE
        if min(gains) > self._config.gain_min:
            sentence = f"{name} would serve more than {now.split.name}: {told}"
            if role is Role.PREFILL and wire_decides(mixes[0], curves):
                return None, f"{sentence}; but the wire for KV is the bottleneck"
            return role, sentence
        if mixes[0].rate <= limits.goodput(mixes[0].rate):
            return None, f"{now.split.name} serves all of {mixes[0].rate:.2f} requests/s"
        wanted = _percent(self._config.gain_min)
        return None, f"{name} would bring {told}; more than {wanted} in both is asked for"


def _option(split: Split, mixes: tuple[Mix, ...], curves: Curves) -> Option:
    limits: list[Capacity] = [capacity(split, mix, curves) for mix in mixes]
    pairs = zip(limits, mixes, strict=True)
    return Option(split, tuple(limit.goodput(mix.rate) for limit, mix in pairs))


def _gains(option: Option, now: Option) -> list[float]:
    """By how much more of each window's load it would serve, as a share."""
    pairs = zip(option.goodput, now.goodput, strict=True)
    return [ours / theirs - 1 if theirs else 0.0 for ours, theirs in pairs]


def _percent(gain: float) -> str:
    return f"{gain:+.0%}"
