"""`policy`: shows and sets the placement policy and the rule for remote prefill. `balance`: what
the controller of roles sees, what it would do, and what it did last."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.identity import name_of
from common.net.admin_verbs import Value
from services.router.admin.scale_rows import phases_row, scale_row
from services.router.admin.verb import View
from services.router.events import PolicyChosen
from services.router.fleet.balance.mix import Mix
from services.router.placement.policies.registry import POLICIES
from services.router.tables import Tables


def run(view: View, args: dict[str, Value]) -> dict[str, Any]:
    name, remote_prefill = str(args["name"]), str(args["remote_prefill"])
    if name not in ("", *POLICIES):
        raise BatonError(
            Code.INVALID_REQUEST, f"policy: name must be one of: {', '.join(POLICIES)}"
        )
    if name or remote_prefill:
        view.act(PolicyChosen(name, remote_prefill))
    placing = view.tables.placement_memory
    return {
        "policy": placing.policy.NAME,
        "remote_prefill": placing.options.remote_prefill,
        "mode": placing.options.mode,
        "policies": {policy.NAME: policy.HELP for policy in POLICIES.values()},
    }


def balance(view: View, _: dict[str, Value]) -> list[dict[str, Any]]:
    """One row for each model: what of roles, of streams, of numbers, and the load by phase."""
    models = view.shared.models.values()
    return [
        _balance_row(tables, view.now)
        | _streams(tables)
        | scale_row(tables, view.now)
        | phases_row(tables)
        for tables in models
    ]


def _streams(tables: Tables) -> dict[str, Any]:
    """What `[router.rebalance]` sees and does."""
    controller, verdict = tables.rebalance, tables.rebalance.verdict
    off = (
        "[router.rebalance] mode is off, so nothing is watched" if controller.mode == "off" else ""
    )
    mover = verdict.key[0] if verdict is not None and verdict.key is not None else ""
    return {
        "streams_mode": controller.mode,
        "streams_would": f"{mover} to {name_of(verdict.target)}" if mover and verdict else "",
        "streams_why": verdict.sentence if verdict is not None else off,
    }


def _balance_row(tables: Tables, now: float) -> dict[str, Any]:
    verdict, ordered = tables.balance.verdict, tables.balance.ordered
    row: dict[str, Any] = {"model": tables.model, "mode": tables.settings.balance.mode}
    row |= {"would": "", "why": _why_nothing(tables)}
    if verdict is not None:
        short, long = verdict.mixes if len(verdict.mixes) == 2 else (None, None)
        splits = [f"{o.split.name} {min(o.goodput):.2f}" for o in verdict.options]
        row |= {
            "looked_s": round(now - verdict.at, 1),
            "requests_per_s": round(short.rate, 2) if short else 0.0,
            "prompt_tokens": round(short.prompt) if short else 0,
            "output_tokens": round(short.output) if short else 0,
            "before": _told(long) if long else "",
            "serves_per_s": ", ".join(splits),
            "would": f"one more {verdict.role} worker" if verdict.role else "",
            "why": row["why"] or verdict.sentence,
        }
    if ordered is not None:
        row |= {
            "ordered": f"{ordered.worker} to {ordered.role}: {ordered.sentence}",
            "ordered_s": round(now - ordered.at, 1),
        }
    return row


def _told(mix: Mix) -> str:
    """The load of the longer window."""
    return f"{mix.rate:.2f}/s of {mix.prompt:.0f} + {mix.output:.0f} tokens"


def _why_nothing(tables: Tables) -> str:
    """Why nothing is looked at; empty = it is, or the first look is due."""
    if not tables.balance.on:
        return "[router.balance] mode is off, so nothing is watched"
    mode = tables.settings.mode
    if mode != "disaggregated":
        return f"mode {mode} has decode workers only"
    if tables.draining:
        return "this router is stopping"
    return "this router has just started and waits for its workers" if tables.rebuilding else ""
