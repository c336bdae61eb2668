"""`baton ctl explain`, for people: a bar per phase, then the story in sentences; or the list of the
slowest or of the failures."""

from __future__ import annotations

from typing import Any

from services.ctl.table import span, table

BAR_WIDTH = 40
SENTENCE_WIDTH = 60
HEAD = ("REQUEST", "ENDED", "AGO", "TOTAL", "TTFT", "PER TOKEN", "IN", "OUT", "MOST OF IT")


def render(result: Any) -> str:
    if isinstance(result, list):
        return _listed(result)
    told = result.get("timeline") or {}
    parts = [f"request {result['request_id']}"]
    if told:
        parts += [_whole(told)]
    parts += [_attempt(each, alone=not told) for each in result["attempts"]]
    return "\n\n".join(parts)


def _listed(rows: list[Any]) -> str:
    if not rows:
        return "none is kept"
    return table(
        HEAD,
        [
            (
                each["request_id"],
                each["code"] or each["outcome"],
                span(each["ago_ms"]),
                span(each["total_ms"]),
                span(each["ttft_ms"]) if each["ttft_ms"] else None,
                f"{each['tpot_ms']:.1f} ms" if each["tpot_ms"] else None,
                each["prompt_tokens"],
                each["completion_tokens"],
                _most(each),
            )
            for each in rows
        ],
    )


def _most(each: Any) -> str:
    if each["outcome"] in ("failed", "lost", "refused") and each["sentence"]:
        sentence = str(each["sentence"])
        return sentence if len(sentence) <= SENTENCE_WIDTH else sentence[: SENTENCE_WIDTH - 1] + "…"
    where = f" on {each['longest_worker']}" if each["longest_worker"] else ""
    return f"{each['longest_phase']}{where}: {span(each['longest_ms'])}"


def _whole(told: Any) -> str:
    total = max(told["total_ms"], 0.001)
    many = told["moves"] > 0
    rows = [
        (
            f"  {each['phase']}" + (f" (attempt {each['attempt']})" if many else ""),
            _bar(each["start_ms"], each["start_ms"] + each["ms"], total),
            f"{each['ms']:.2f} ms",
            each["worker"],
        )
        for each in told["phases"]
    ]
    longest = max(told["phases"], key=lambda each: each["ms"])
    where = f" on {longest['worker']}" if longest["worker"] else ""
    share = longest["ms"] / total
    title = (
        f"{told['outcome']} after {told['total_ms']:.2f} ms for the client: first token after "
        f"{told['ttft_ms']:.2f} ms, {told['completion_tokens']} tokens, "
        f"{told['tpot_ms']:.2f} ms each after the first"
    )
    why = f"  most of it, {share:.0%}: {longest['phase']}{where}"
    return "\n".join((title, table(("  PHASE", "", "TOOK", "WHERE"), rows), why))


def _attempt(each: Any, *, alone: bool) -> str:
    outcome = f" ({each['outcome']})" if each["outcome"] else ""
    ago = each.get("received_ms_ago")
    received = f"received {span(ago)} ago by {each['gateway']}, " if ago is not None else ""
    title = (
        f"attempt {each['attempt']}: {each['state']}{outcome} after {each['total_ms']} ms, "
        f"{received}{each['prompt_tokens']} prompt tokens, {each['max_tokens']} to make at most"
    )
    story = "\n".join(f"  - {sentence}" for sentence in each["sentences"])
    bars = _bars(each) if alone else ""
    return "\n".join(part for part in (title, bars, story, _candidates(each)) if part)


def _bars(each: Any) -> str:
    total = max(each["total_ms"], 0.001)
    rows = []
    for phase in each["phases"]:
        start, end = phase["start_ms"], phase["end_ms"]
        until = total if end is None else end
        took = f"{round(until - start, 2)} ms" + ("" if end is not None else " so far")
        rows.append((f"  {phase['phase']}", _bar(start, until, total), took))
    return table(("  PHASE", "", "TOOK"), rows)


def _bar(start: float, until: float, total: float) -> str:
    first = min(BAR_WIDTH - 1, round(BAR_WIDTH * start / total))
    length = max(1, round(BAR_WIDTH * (until - start) / total))
    return f"|{(' ' * first + '#' * length)[:BAR_WIDTH].ljust(BAR_WIDTH)}|"


def _candidates(each: Any) -> str:
    rows = [
        (f"  {c['role']}", c["name"], " ".join(f"{part:.4g}" for part in c["score"]))
        for c in each["candidates"]
    ]
    return table(("  CANDIDATE", "NAME", "SCORE (lower is better)"), rows) if rows else ""
