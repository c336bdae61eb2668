"""`baton ctl status`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import Cell, pairs, size, span


def render(result: Any) -> str:
    ready = "yes" if result["ready"] else f"NO: {result['reason']}"
    rate = result["drained_per_s"]
    fleet = (
        f"{result['prefill_ready']} prefill and {result['decode_ready']} decode workers ready, "
        f"{result['gateways']} gateways"
    )
    rows: list[tuple[str, Cell]] = [
        ("ready", ready),
        *_alarms(result.get("alarms", [])),
        ("model", result["model"]),
        ("router", f"{result['router']} (up {span(result['uptime_s'] * 1000)})"),
        ("fleet", fleet),
        ("running", f"{result['active']} of {result['active_max']}"),
        (
            "queued",
            f"{result['queued']} of {result['queued_max']} ({size(result['queued_bytes'])})",
        ),
        ("drain rate", "not measured yet" if rate is None else f"{rate} requests/s"),
        (
            "policy",
            f"{result['policy']}, {result['mode']}, remote prefill {result['remote_prefill']}",
        ),
        ("workers doubted", result.get("workers_doubted", 0)),
        ("prefix blocks known", result.get("prefix_hashes", 0)),
        ("pairs not used now", result.get("pairs_resting", 0)),
        *_appointments(result),
        *_estimates(result.get("estimates", {})),
    ]
    rows += [(f"total {name}", value) for name, value in result["totals"].items()]
    rows += [(f"refused {name}", value) for name, value in sorted(result["refused"].items())]
    rows += [(f"dropped {name}", value) for name, value in sorted(result["dropped"].items())]
    return pairs(rows)


def _alarms(standing: list[dict[str, Any]]) -> list[tuple[str, Cell]]:
    return [
        (f"ALARM {each['cause']}", f"{each['sentence']} (for {span(each['since_s'] * 1000)})")
        for each in standing
    ]


def _appointments(result: dict[str, Any]) -> list[tuple[str, Cell]]:
    """Of routers that say so: refused requests that were told when to come back."""
    if "appointments" not in result:
        return []
    share = f"{result['appointments_kept']:.0%} of them expected"
    return [("appointments", f"{result['appointments']} told when to come back, {share}")]


def _estimates(known: dict[str, Any]) -> list[tuple[str, Cell]]:
    """What the router has learned; tables as `size: value`."""
    return [
        (f"learned {name}", ", ".join(f"{key}: {value:g}" for key, value in table.items()))
        if isinstance(table, dict)
        else (f"learned {name}", table)
        for name, table in known.items()
    ]
