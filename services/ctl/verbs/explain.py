"""`baton ctl explain`: a bar per phase of a request, then each decision as a sentence; or a list of
requests that the router's recorder kept."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from common.telemetry.timeline import AttemptRecord, TimelineRecord
from services.ctl.table import duration, rows, table
from services.ctl.verb import argument

LISTS = tuple(
    argument(f"--{kept}", action="store_const", dest="list", const=kept, help=f"list={kept}")
    for kept in ("slow", "failed", "refused", "recent")
)
BAR_WIDTH = 40
BAR_TITLES = ("  PHASE", "", "TOOK", "WHERE")
SENTENCE_WIDTH = 60


def _longest(row: Any) -> str:
    """The longest phase, or why the request failed."""
    if row["outcome"] in ("failed", "lost", "refused") and row["sentence"]:
        sentence = str(row["sentence"])
        return sentence if len(sentence) <= SENTENCE_WIDTH else sentence[: SENTENCE_WIDTH - 1] + "…"
    where = f" on {row['longest_worker']}" if row["longest_worker"] else ""
    return f"{row['longest_phase']}{where}: {duration(row['longest_ms'])}"


_list = rows(
    {
        "REQUEST": "request_id",
        "ENDED": lambda row: row["code"] or row["outcome"],
        "AGO": "ago_ms",
        "TOTAL": "total_ms",
        "TTFT": lambda row: duration(row["ttft_ms"]) if row["ttft_ms"] else None,
        "TPOT": lambda row: f"{row['tpot_ms']:.1f} ms" if row["tpot_ms"] else None,
        "PROMPT": "prompt_tokens",
        "OUTPUT": "completion_tokens",
        "LONGEST PHASE": _longest,
    },
    empty="no such request is kept",
)


def render(result: Any) -> str:
    if isinstance(result, list):
        return _list(result)
    attempts = msgspec.convert(result["attempts"], tuple[AttemptRecord, ...])
    parts = [f"request {result['request_id']}"]
    if result.get("timeline"):
        parts.append(_timeline(msgspec.convert(result["timeline"], TimelineRecord)))
        parts += [_attempt(attempt) for attempt in attempts]
    else:
        parts += [_attempt(attempt, _attempt_bars(attempt)) for attempt in attempts]
    return "\n\n".join(parts)


def _timeline(record: TimelineRecord) -> str:
    """The request as its client saw it, over all attempts."""
    longest = max(record.phases, key=lambda phase: phase.ms)
    where = f" on {longest.worker}" if longest.worker else ""
    share = longest.ms / max(record.total_ms, 0.001)
    bars = [
        _bar(
            f"{phase.phase} (attempt {phase.attempt})" if record.moves else phase.phase,
            (phase.start_ms, phase.start_ms + phase.ms, record.total_ms),
            f"{phase.ms:.2f} ms",
            phase.worker,
        )
        for phase in record.phases
    ]
    return (
        f"{record.outcome} after {record.total_ms:.2f} ms for the client: first token "
        f"after {record.ttft_ms:.2f} ms, {record.completion_tokens} tokens, "
        f"{record.tpot_ms:.2f} ms each after the first\n"
        f"{table(BAR_TITLES, bars)}\n"
        f"  most of it, {share:.0%}: {longest.phase}{where}"
    )


def _attempt(attempt: AttemptRecord, *bars: str) -> str:
    outcome = f" ({attempt.outcome})" if attempt.outcome else ""
    ago = attempt.received_ms_ago
    received = "" if ago is UNSET else f"received {duration(ago)} ago by {attempt.gateway}, "
    title = (
        f"attempt {attempt.attempt}: {attempt.state}{outcome} after "
        f"{attempt.total_ms} ms, {received}{attempt.prompt_tokens} prompt tokens, "
        f"{attempt.max_tokens} to make at most"
    )
    parts = [title, *bars, *(f"  - {sentence}" for sentence in attempt.sentences)]
    candidates = [
        (f"  {worker.role}", worker.name, " ".join(f"{part:.4g}" for part in worker.score))
        for worker in attempt.candidates
    ]
    if candidates:
        parts.append(table(("  CANDIDATE", "NAME", "SCORE (lower is better)"), candidates))
    return "\n".join(parts)


def _attempt_bars(attempt: AttemptRecord) -> str:
    """A phase without an end is under way."""
    bars = []
    for phase in attempt.phases:
        end = attempt.total_ms if phase.end_ms is None else phase.end_ms
        took = f"{end - phase.start_ms:.2f} ms" + (" so far" if phase.end_ms is None else "")
        bars.append(_bar(phase.phase, (phase.start_ms, end, attempt.total_ms), took))
    return table(BAR_TITLES, bars)


def _bar(
    phase: str, times: tuple[float, float, float], took: str, worker: str | None = None
) -> tuple[str, str, str, str | None]:
    """`times`: start and end of the phase, and the total that the full width stands for."""
    start, end, total = times
    scale = BAR_WIDTH / max(total, 0.001)
    first = min(BAR_WIDTH - 1, round(start * scale))
    bar = " " * first + "#" * max(1, round((end - start) * scale))
    return f"  {phase}", f"|{bar[:BAR_WIDTH].ljust(BAR_WIDTH)}|", took, worker
