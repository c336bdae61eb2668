"""Judges a fault run: what must hold, what must have happened, and the table for people."""

from __future__ import annotations

from tests.faults.plan import KINDS
from tests.faults.world import Notes

OUTCOMES = ("delivered", "fetched again", "recomputed", "cancelled")


def broken_promises(notes: Notes) -> list[str]:
    """What the KV layer did wrong; empty when all is well."""
    broken = []
    false_alarms = notes.caught - notes.corrupted
    for what, count in {
        "blocks that became visible and are not P's": notes.wrong_blocks,
        "damaged messages that were accepted": notes.accepted_wrong,
        "digest mismatches of messages that nobody bent": len(false_alarms),
        "ends that were reported twice or of nothing": len(notes.unexpected_ends),
        "used tickets that were served again": notes.used_tickets_served,
        **{f"{what} left behind": count for what, count in notes.held.items()},
    }.items():
        if count:
            broken.append(f"{count} {what}")
    return broken


def kinds_of(loans: bool) -> tuple[str, ...]:
    """Faults that can happen: where nothing is loaned, no KvMapped is sent."""
    return tuple(kind for kind in KINDS if loans or not kind.startswith("KvMapped:"))


def useless(notes: Notes, kinds: tuple[str, ...] = KINDS) -> list[str]:
    """Faults that did not take effect, so that the run proves nothing about them."""
    missing = [f"{kind} never happened" for kind in kinds if not notes.bent[kind]]
    if notes.corrupted and not notes.caught:
        missing.append("no damaged message was ever judged")
    return missing


def table(notes: Notes) -> str:
    """By fault: how often it was done, and how the handoffs it was meant for ended."""
    lines = [f"{'fault':<22}{'done':>7}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES)]
    for kind in ("none", *KINDS):
        ended = [notes.outcomes[kind, outcome] for outcome in OUTCOMES]
        if sum(ended) or notes.bent[kind]:
            done = "" if kind == "none" else str(notes.bent[kind])
            lines.append(f"{kind:<22}{done:>7}" + "".join(f"{outcome:>15}" for outcome in ended))
    ended = [
        sum(notes.outcomes[kind, outcome] for kind in ("none", *KINDS)) for outcome in OUTCOMES
    ]
    lines.append(f"{'all':<22}{'':>7}" + "".join(f"{outcome:>15}" for outcome in ended))
    in_flight = sum(count for _, count in notes.kills)
    caught = len(notes.caught & notes.corrupted)
    return "\n".join(lines) + (
        f"""
{notes.done} handoffs in {notes.seconds:.1f} s, seed {notes.seed}; {notes.ends} ends reported, \
{notes.retries} tries repeated
{len(notes.corrupted)} messages damaged, {caught} refused by their digest, \
{notes.accepted_wrong} accepted; the rest came to nobody
{len(notes.kills)} workers killed with {in_flight} handoffs open, {notes.redone} given to another D
{notes.quiet_rounds} times all quiet: {dict(notes.held) or "nothing"} left behind"""
    )
