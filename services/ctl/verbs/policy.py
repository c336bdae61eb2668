"""`baton ctl policy`: how workers are chosen. `baton ctl balance`: why a worker changes its role,
or why none does."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration, fields, table


def render(result: Any) -> str:
    in_force = [
        (key.replace("_", " "), result[key]) for key in ("policy", "remote_prefill", "mode")
    ]
    policies = [
        ("*" if name == result["policy"] else " ", name, help_)
        for name, help_ in result["policies"].items()
    ]
    return f"{fields(in_force)}\n\n{table(('', 'POLICY', 'WHO IS CHOSEN'), policies)}"


def render_balance(result: Any) -> str:
    """A paragraph for each model."""
    return "\n\n".join(map(_of_model, result))


def _of_model(row: dict[str, Any]) -> str:
    looked = f", looked {duration(row['looked_s'] * 1000)} ago" if "looked_s" in row else ""
    told = [("model", f"{row['model']}, mode {row['mode']}{looked}")]
    if row.get("before"):
        now = f"{row['requests_per_s']:.2f}/s of {row['prompt_tokens']} + {row['output_tokens']}"
        told += [("load", f"{now} tokens"), ("before", row["before"])]
    if row.get("serves_per_s"):
        told.append(("serves", f"{row['serves_per_s']} requests/s"))
    told += [("would", row["would"] or "change nothing"), ("why", row["why"] or "not looked yet")]
    if "ordered" in row:
        told.append(("did", f"{duration(row['ordered_s'] * 1000)} ago: {row['ordered']}"))
    return fields([*told, *_phases(row), *_numbers(row)])


def _phases(row: dict[str, Any]) -> list[tuple[str, str]]:
    """What both phases do, and what helps; an older router does not say it."""
    return [(name, row[name]) for name in ("phases", "hint") if name in row]


def _numbers(row: dict[str, Any]) -> list[tuple[str, str]]:
    """How many workers there should be."""
    if "scale_mode" not in row:
        return []
    would = row["scale_would"] or "order nothing"
    told = [("scale", f"mode {row['scale_mode']}: {would}: {row['scale_why'] or 'not looked yet'}")]
    if "scale_open" in row:
        told.append(("ordered", row["scale_open"]))
    if "scale_did" in row:
        told.append(("before", f"{duration(row['scale_did_s'] * 1000)} ago: {row['scale_did']}"))
    return told
