"""`docs/models.md`: which families of models are handed over, and why the others are not."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.zoo.checkpoints import checkpoint
from tests.zoo.families import FAMILIES, Family
from tests.zoo.trial import TWO_RANKS, WHOLE, Group, Outcome

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunked",
    "MLAAttentionSpec": "latent",
    "MambaSpec": "state",
}
HEAD = f"""\
# Models

`make zoo` makes a tiny checkpoint of each of these families with random weights, serves it by
prefill and decode workers on vLLM's CPU engine, and writes this page. "yes" means: {WHOLE} prompts
of 1 to 3,000 tokens, alone and all at once, gave the tokens of a plain vLLM engine in float32; so
did those whose KV was damaged, those whose prefill worker was killed or told to abort, and those
whose decode worker was killed; and the bytes on the wire were those of the blocks that the last
token of a prompt needs. "yes, one at a time" means the first and the last of these, without company
and without faults, for what follows the first token. "TP 2" says the same of engines of two ranks
(`tensor_parallel_size = 2`), tried with {TWO_RANKS} of the prompts, without the death of the
decode worker; "-" means that nobody tried.
`make test-long` repeats a sample of the rows, a different one each day.

"Attention" lists what vLLM keeps for the layers: full attention, a sliding window, chunks, latent
attention (MLA) or a state, with the number of layers of each.
"""


COLUMNS = ["family", "architecture", "attention", "handed over", "TP 2", "with, or why not"]
TWO_RANKS_AT = COLUMNS.index("TP 2")


def page(outcomes: list[Outcome], written: str) -> str:
    """With what these outcomes say; the rest stays as it is `written`."""
    rows = {name_of(line): line for line in rows_of(written)}
    for outcome in outcomes:
        name = outcome.family.name
        rows[name] = row(outcome, rows.get(name, ""))
    known = [rows[family.name] for family in FAMILIES if family.name in rows]
    return "\n".join([HEAD, _line(COLUMNS), _line(["---"] * len(COLUMNS)), *known, ""])


def row(outcome: Outcome, written: str = "") -> str:
    """An outcome of two ranks is a cell of the row that is `written`; one of a single rank is all
    other cells."""
    cells = _cells(written) if written else ["-"] * len(COLUMNS)
    verdict, said = _verdict(outcome)
    if outcome.ranks > 1:
        cells[TWO_RANKS_AT] = verdict if verdict.startswith("yes") else f"{verdict}: {said}"
        return _line(cells)
    config = json.loads((checkpoint(outcome.family) / "config.json").read_text())
    architecture = ", ".join(config["architectures"])
    attention = ", ".join(
        f"{sum(group.layers for group in groups)} {KINDS.get(kind, kind)}"
        for kind, groups in groupby(sorted(outcome.groups, key=kind_of), key=kind_of)
    )
    two_ranks = cells[TWO_RANKS_AT]
    return _line([outcome.family.name, architecture, attention or "-", verdict, two_ranks, said])


def kind_of(group: Group) -> str:
    return group.kind


def _verdict(outcome: Outcome) -> tuple[str, str]:
    if outcome.unserved:
        return "vLLM does not start", outcome.unserved
    if outcome.refused:
        return "refused", outcome.refused
    if outcome.wrong:
        return "WRONG", outcome.wrong[0]
    settings = [f"`{key} = {_toml(value)}`" for key, value in outcome.family.engine.items()]
    said = ", ".join([f"blocks of {outcome.block_tokens} tokens", *settings])
    if outcome.family.alone:
        return "yes, one at a time", f"{said}; {outcome.family.alone}"
    return "yes", said


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def rows_of(text: str) -> list[str]:
    """The rows of a page, without the head."""
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


def name_of(line: str) -> str:
    """The family of a row."""
    return _cells(line)[0]


def works(written: str, family: Family, ranks: int) -> bool:
    """Whether a page says that the family is handed over by engines of so many ranks."""
    cells = [_cells(line) for line in rows_of(written) if name_of(line) == family.name]
    return any(
        row[TWO_RANKS_AT if ranks > 1 else TWO_RANKS_AT - 1].startswith("yes") for row in cells
    )


def _cells(line: str) -> list[str]:
    return [cell.replace("\\|", "|") for cell in line[2:-2].split(" | ")]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
