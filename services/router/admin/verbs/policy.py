"""`policy`: shows and sets the placement policy and the rule for remote prefill. `balance`: what
the controller of roles sees, and what it would do."""

from __future__ import annotations

from typing import Any

from common.errors import BatonError, Code
from common.identity import name_of
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.events import PolicyChosen
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
    """One row for each model: what of roles, and what of streams."""
    models = view.shared.models.values()
    return [_balance_row(tables, view.now) | _streams(tables) for tables in models]


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
    verdict = tables.balance.verdict
    row: dict[str, Any] = {"model": tables.model, "mode": tables.settings.balance.mode}
    if verdict is None:
        return row | {"would": "", "why": _why_nothing(tables)}
    mix = verdict.mixes[0] if verdict.mixes else None
    splits = [f"{o.split.name} {min(o.goodput):.2f}" for o in verdict.options]
    return row | {
        "looked_s": round(now - verdict.at, 1),
        "requests_per_s": round(mix.rate, 2) if mix else 0.0,
        "prompt_tokens": round(mix.prompt) if mix else 0,
        "output_tokens": round(mix.output) if mix else 0,
        "serves_per_s": ", ".join(splits),
        "would": f"one more {verdict.role} worker" if verdict.role else "",
        "why": verdict.sentence,
    }


def _why_nothing(tables: Tables) -> str:
    """Why there is no verdict; empty: the first one is due."""
    if not tables.balance.on:
        return "[router.balance] mode is off, so nothing is watched"
    mode = tables.settings.mode
    return "" if mode == "disaggregated" else f"mode {mode} has decode workers only"
