"""`baton ctl workers`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import Cell, span, table

HEAD = ("NAME", "ROLE", "STATE", "FOR", "REQUESTS", "AHEAD", "KV PROMISED", "KV USED", "WHY")


def render(result: Any) -> str:
    if not result:
        return "no worker has said hello"
    return table(HEAD, [_row(each) for each in result])


def _row(each: Any) -> tuple[Cell, ...]:
    promised = each["kv_tokens_promised"] + each["kv_tokens_foreign"]
    return (
        each["name"],
        each["role"],
        each["state"],
        span(each["since_s"] * 1000),
        f"{each['requests']}/{each['requests_max']}",
        each["queued_tokens"],
        f"{promised / max(1, each['kv_tokens_max']):.0%}",
        f"{each['kv_used']:.0%}",
        _why(each),
    )


def _why(each: Any) -> str:
    apart = each.get("not_paired_with", [])
    rest = f"not paired with {', '.join(apart)}" if apart else ""
    verdict = each.get("verdict", "")
    doubt = f"its host says {verdict}: {each['verdict_reason']}" if verdict else ""
    return "; ".join(part for part in (each["reason"], doubt, rest) if part)
