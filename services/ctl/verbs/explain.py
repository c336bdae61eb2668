"""`baton ctl explain ID`, for people: a bar per phase, then the story in sentences."""

from __future__ import annotations

from typing import Any

from services.ctl.table import span, table

BAR_WIDTH = 40


def render(result: Any) -> str:
    parts = [f"request {result['request_id']}"]
    parts += [_attempt(each) for each in result["attempts"]]
    return "\n\n".join(parts)


def _attempt(each: Any) -> str:
    outcome = f" ({each['outcome']})" if each["outcome"] else ""
    title = (
        f"attempt {each['attempt']}: {each['state']}{outcome} after {each['total_ms']} ms, "
        f"received {span(each['received_ms_ago'])} ago by {each['gateway']}, "
        f"{each['prompt_tokens']} prompt tokens, {each['max_tokens']} to make at most"
    )
    story = "\n".join(f"  - {sentence}" for sentence in each["sentences"])
    return "\n".join(part for part in (title, _bars(each), story, _candidates(each)) if part)


def _bars(each: Any) -> str:
    total = max(each["total_ms"], 0.001)
    rows = []
    for phase in each["phases"]:
        start, end = phase["start_ms"], phase["end_ms"]
        until = total if end is None else end
        first = min(BAR_WIDTH - 1, round(BAR_WIDTH * start / total))
        length = max(1, round(BAR_WIDTH * (until - start) / total))
        bar = (" " * first + "#" * length)[:BAR_WIDTH]
        took = f"{round(until - start, 2)} ms" + ("" if end is not None else " so far")
        rows.append((f"  {phase['phase']}", f"|{bar.ljust(BAR_WIDTH)}|", took))
    return table(("  PHASE", "", "TOOK"), rows)


def _candidates(each: Any) -> str:
    rows = [
        (f"  {c['role']}", c["name"], " ".join(f"{part:.4g}" for part in c["score"]))
        for c in each["candidates"]
    ]
    return table(("  CANDIDATE", "NAME", "SCORE (lower is better)"), rows) if rows else ""
