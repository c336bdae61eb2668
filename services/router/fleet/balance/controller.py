"""Whether a worker of a model should change its role, and why not. Sans-IO.

Theory of operation: every `LOOK_SECONDS` the goodput on paper of the present split is compared with
that of the splits that are one change of role away, for the load of a short and of a long window.
A change is worth making only if both windows agree on it, by more than `gain_min` each: the short
one says that the need is there, the long one that it is no wave. Where no neighbour brings so much,
because one worker of many is a small share, the best split of all is compared too; a worker then
changes its role as the first step there. Where the workers serve all that is asked for, no split
serves more, and nothing changes. Nor does it while the wire for KV is the bottleneck, while another
worker changes its role, for `cooldown_ms` after a change or an order, and until this router has
watched for the long window: a router that took over knows neither the load nor what its predecessor
ordered a moment ago.

A change of the load costs goodput until the long window shows it, too, so that window must be short
against the time in which the load changes; docs/decisions says what was measured. The verdict is
kept, for `baton ctl balance`, and so is the latest order.
"""

from __future__ import annotations

from typing import NamedTuple

from common.config import BalanceConfig
from common.messages import Role
from services.router.fleet.balance.goodput import (
    Curves,
    Split,
    best,
    capacity,
    neighbours,
    wire_decides,
)
from services.router.fleet.balance.mix import Mix, MixWindow

LOOK_SECONDS = 5.0
SHORT_SECONDS = 30.0
REQUESTS_MIN = 20
"""Fewer requests in the short window say too little."""


class Pace(NamedTuple):
    """How fast a controller is. A simulation of seconds has a faster one than production."""

    #: Seconds between two looks.
    look_s: float
    #: The short and the long window.
    short_s: float
    long_s: float
    #: Seconds after a change or an order.
    cooldown_s: float
    #: Requests in the short window at least.
    requests_min: int = REQUESTS_MIN

    @classmethod
    def of(cls, config: BalanceConfig) -> Pace:
        long_s, cooldown_s = config.long_ms / 1000, config.cooldown_ms / 1000
        return cls(LOOK_SECONDS, SHORT_SECONDS, long_s, cooldown_s)


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
    #: The present split first, then those that it was compared with.
    options: tuple[Option, ...]
    #: The role that one worker should take; None = nothing should change.
    role: Role | None
    #: The reason, as one sentence.
    sentence: str


class Ordered(NamedTuple):
    """The latest order of this controller."""

    #: When it was given, in seconds on the core's clock.
    at: float
    #: The worker's name, and the role that it was ordered to take.
    worker: str
    role: Role
    #: Why, or why it was taken back.
    sentence: str


class Balance:
    """Of one model. `watches`: the load is watched for others, too, if it does nothing itself."""

    def __init__(self, config: BalanceConfig, *, watches: bool = False) -> None:
        self._config = config
        self._watches = watches or config.mode != "off"
        self._changed: float | None = None
        #: The latest look; None = there was none yet.
        self.verdict: Verdict | None = None
        #: The latest order; None = it has given none.
        self.ordered: Ordered | None = None
        self.set_pace(Pace.of(config))

    def set_pace(self, pace: Pace) -> None:
        """What was watched is forgotten."""
        self._pace = pace
        self._windows = (MixWindow(pace.short_s), MixWindow(pace.long_s))

    @property
    def on(self) -> bool:
        """Whether it looks at all."""
        return self._config.mode != "off"

    @property
    def acts(self) -> bool:
        """Whether its verdicts become orders."""
        return self._config.mode == "on"

    def add_request(self, prompt_tokens: int, max_tokens: int, now: float) -> None:
        """As `MixWindow.add_request`."""
        if self._watches:
            for window in self._windows:
                window.add_request(prompt_tokens, max_tokens, now)

    def add_prompt(self, prompt_tokens: int, computed: int, now: float) -> None:
        """As `MixWindow.add_prompt`."""
        if self._watches:
            for window in self._windows:
                window.add_prompt(prompt_tokens, computed, now)

    def add_output(self, max_tokens: int, generated: int, now: float) -> None:
        """As `MixWindow.add_output`."""
        if self._watches:
            for window in self._windows:
                window.add_output(max_tokens, generated, now)

    def mixes(self, now: float) -> tuple[Mix | None, ...]:
        """The load of the short and of the long window; None where too little was seen."""
        return tuple(window.mix(now) for window in self._windows)

    def watches_for(self, now: float) -> str:
        """Why it has not watched for long enough to act; empty = it has."""
        first, long_s = self._windows[1].first, self._pace.long_s
        if first is None or now - first < long_s:
            return f"this router has watched for less than {_span(long_s)}"
        return ""

    @property
    def requests_min(self) -> int:
        """Requests in the short window below which it says too little."""
        return self._pace.requests_min

    def due(self, now: float) -> bool:
        return self.on and (self.verdict is None or now - self.verdict.at >= self._pace.look_s)

    def record_change(self, at: float) -> None:
        """A worker of the model changed its role, by whosever order. The latest counts."""
        self._changed = at if self._changed is None else max(at, self._changed)

    def record_order(self, ordered: Ordered) -> None:
        """An order was given, or taken back."""
        self.ordered = ordered
        self.record_change(ordered.at)

    def hold_back(self, why: str) -> None:
        """No worker can do what the latest look would have done."""
        if self.verdict is not None:
            sentence = f"{self.verdict.sentence}; but {why}"
            self.verdict = self.verdict._replace(role=None, sentence=sentence)

    def look(self, split: Split, curves: Curves, now: float, busy: str = "") -> Verdict:
        """At the ready workers. `busy`: why no role may change whatever the load is, empty =
        nothing stands against it."""
        mixes = [window.mix(now) for window in self._windows]
        known = tuple(mix for mix in mixes if mix is not None)
        options: tuple[Option, ...] = ()
        role: Role | None = None
        if len(known) < len(mixes) or known[0].requests < self._pace.requests_min:
            requests = known[0].requests if known else 0
            sentence = (
                f"{requests} requests in {_span(self._pace.short_s)} say too little: "
                f"{self._pace.requests_min} are needed"
            )
        elif min(split) < 1:
            sentence = f"{split.name}: there are not both, prefill and decode workers"
        else:
            tried = (split, *neighbours(split))
            options = tuple(_option(one, known, curves) for one in tried)
            options, role, sentence = self._judge(options, known, curves)
            against = busy or self._too_soon(now)
            if role is not None and against:
                role, sentence = None, f"{sentence}; but {against}"
        self.verdict = Verdict(now, known, options, role, sentence)
        return self.verdict

    def _too_soon(self, now: float) -> str:
        """Why it does not act yet; empty = it may."""
        since = None if self._changed is None else now - self._changed
        if since is not None and since < self._pace.cooldown_s:
            return f"a role changed {since:.0f} s ago"
        return self.watches_for(now)

    def _judge(
        self, options: tuple[Option, ...], mixes: tuple[Mix, ...], curves: Curves
    ) -> tuple[tuple[Option, ...], Role | None, str]:
        """The options that were compared, the role of a worker that should change, and why."""
        now, *others = options
        if not others:
            return options, None, f"{now.split.name}: one of each role stays"
        found = max(others, key=lambda option: min(_gains(option, now)))
        if min(_gains(found, now)) <= self._config.gain_min:
            far = {best(now.split, mix, curves) for mix in mixes}
            more = [_option(one, mixes, curves) for one in sorted(far)]
            more = [option for option in more if option.split not in {o.split for o in options}]
            options = (*options, *more)
            found = max((found, *more), key=lambda option: min(_gains(option, now)))
        gains, name = _gains(found, now), found.split.name
        short, long = _span(self._pace.short_s), _span(self._pace.long_s)
        told = f"{_percent(gains[0])} in the last {short} and {_percent(gains[1])} in {long}"
        role = Role.PREFILL if found.split.prefills > now.split.prefills else Role.DECODE
        if min(gains) > self._config.gain_min:
            sentence = f"{name} would serve more than {now.split.name}: {told}"
            if wire_decides(now.split, mixes[0], curves):
                return options, None, f"{sentence}; but the wire for KV is the bottleneck"
            return options, role, sentence
        if mixes[0].rate <= now.goodput[0]:
            return options, None, f"{now.split.name} serves all of {mixes[0].rate:.2f} requests/s"
        wanted = _percent(self._config.gain_min)
        sentence = f"{name} would bring {told}; more than {wanted} in both is asked for"
        return options, None, sentence


def _option(split: Split, mixes: tuple[Mix, ...], curves: Curves) -> Option:
    limits = [capacity(split, mix, curves) for mix in mixes]
    pairs = zip(limits, mixes, strict=True)
    return Option(split, tuple(limit.goodput(mix.rate) for limit, mix in pairs))


def _gains(option: Option, now: Option) -> list[float]:
    """By how much more of each window's load it would serve, as a share."""
    pairs = zip(option.goodput, now.goodput, strict=True)
    return [ours / theirs - 1 if theirs else 0.0 for ours, theirs in pairs]


def _percent(gain: float) -> str:
    return f"{gain:+.0%}"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:.3g} s"
