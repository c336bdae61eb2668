"""What happens to each handoff of a run: drawn from the seed and the handoff's number alone.

The same seed gives the same prompts, chunks, faults and kills; only the interleaving of processes
differs from run to run.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from common.kv.plan import WINDOW_MAX

MESSAGE_BLOCKS = 4
BLOCKS_MAX = 48
WINDOW_BLOCKS = WINDOW_MAX * MESSAGE_BLOCKS

DATA = "data"
CORRUPTIONS = frozenset({"flip", "flip-always", "header", "truncate", "replay"})
"""Faults after which a data message must not be accepted."""

MESSAGE_FAULTS: dict[str, tuple[str, ...]] = {
    DATA: (*sorted(CORRUPTIONS), "drop", "delay", "reorder", "duplicate", "reset"),
    "KvHello": ("drop", "delay", "garble"),
    "KvMapped": ("drop", "delay", "garble"),
    "KvReady": ("drop", "delay", "reorder", "duplicate", "garble", "truncate", "late-copy"),
    "KvCredit": ("drop", "delay", "reorder", "duplicate", "garble"),
    "KvReleased": ("drop", "delay", "duplicate", "garble"),
    "KvAbort": ("drop", "delay", "duplicate"),
    "KvRefused": ("drop", "delay", "duplicate"),
}
PLAIN_FAULTS = ("old-incarnation", "used-ticket", "withdraw", "release-d", "release-p")
"""Done by the drivers, not to a message."""

KINDS = tuple(
    [f"{target}:{what}" for target, kinds in MESSAGE_FAULTS.items() for what in kinds]
    + [f"case:{what}" for what in PLAIN_FAULTS]
)


@dataclass(frozen=True, slots=True)
class Fault:
    """`what` is done to message number `nth` to `target` of a handoff, and to all later ones of
    its kind if it is one that lasts. `amount`: where to bend, or how long to hold, in [0, 1)."""

    target: str
    what: str
    nth: int
    amount: float

    @property
    def kind(self) -> str:
        return f"{self.target}:{self.what}"


@dataclass(frozen=True, slots=True)
class Spec:
    """One handoff. `chunks`: blocks computed after each chunk, ascending; the last is the whole
    prompt unless the prompt is stuck. `gap_ms`: between chunks. `release`: who gives up, when."""

    number: int
    blocks: int
    first_block: int
    chunks: tuple[int, ...]
    gap_ms: float
    fetch_first: bool
    fault: Fault | None = None
    release: str = ""
    release_ms: float = 0.0
    old_incarnation: bool = False
    used_ticket: bool = False
    withdraw: bool = False

    @property
    def name(self) -> str:
        return f"h{self.number}"

    @property
    def kind(self) -> str:
        if self.fault is not None:
            return self.fault.kind
        cases = {
            "old-incarnation": self.old_incarnation,
            "used-ticket": self.used_ticket,
            "withdraw": self.withdraw,
            "release-d": self.release == "d",
            "release-p": self.release == "p",
        }
        return next((f"case:{case}" for case, holds in cases.items() if holds), "none")


def draw(seed: int, number: int, fault_share: float) -> Spec:
    """Handoff `number`; with chance `fault_share` one thing goes wrong in it."""
    rng = random.Random(f"{seed}:{number}")
    kind = rng.choice(KINDS) if rng.random() < fault_share else "none"
    target, _, what = kind.partition(":")
    blocks = rng.randint(1, BLOCKS_MAX)
    if target == "KvCredit" or what == "withdraw":
        blocks = rng.randint(WINDOW_BLOCKS + MESSAGE_BLOCKS, BLOCKS_MAX)
    many = target == "KvCredit"
    first = 0 if many or rng.random() < 0.6 else rng.randint(0, blocks - 1)
    stuck = target in ("KvAbort", "KvRefused")
    ends = sorted({*(rng.randint(1, blocks) for _ in range(rng.randint(0, 3))), blocks})
    chunks = tuple(ends[:-1]) if stuck else tuple(ends)
    messages = -(-(blocks - first) // MESSAGE_BLOCKS)
    fault = None
    if target not in ("case", "none"):
        nth = rng.randrange(messages) if target == DATA else 0
        fault = Fault(target, what, nth, rng.random())
    release = {"KvAbort": "d", "KvRefused": "p", "case": what[-1] if "release" in what else ""}
    return Spec(
        number=number,
        blocks=blocks,
        first_block=first,
        chunks=chunks,
        gap_ms=rng.choice((0.0, 1.0, 4.0)),
        fetch_first=rng.random() < 0.5,
        fault=fault,
        release=release.get(target, ""),
        release_ms=rng.uniform(10, 40) if stuck else rng.uniform(0, 15),
        old_incarnation=what == "old-incarnation",
        used_ticket=what == "used-ticket",
        withdraw=what == "withdraw",
    )
