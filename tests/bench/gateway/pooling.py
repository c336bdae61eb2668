"""Latency of embeddings and rerank against `vllm serve`: same model of 110 million random weights,
same engine flags, one client, the two servers asked in turn.

What is compared is the median over all turns. A turn asks one and then the other, and the next turn
the other way round, so that what drifts with the machine falls on both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.bench.gateway.table import verdict
from tests.e2e.api.peer import peer
from tests.rigs.fleet import fleet
from tests.zoo.pooling import BERT_BASE, RERANK_BASE, PoolingModel, made

TURNS, WARM = 20, 3
RATIO_MAX = 1.1
EXACT = 1e-5
#: A tokenizer of bytes: as many tokens as characters.
TEXTS = [f"{n} " + "the quick brown fox jumps over the lazy dog. " * 2 for n in range(8)]
ASKED: dict[str, tuple[PoolingModel, str, dict[str, Any]]] = {
    "embeddings, 1 text": (BERT_BASE, "/v1/embeddings", {"input": TEXTS[0]}),
    "embeddings, 8 texts": (BERT_BASE, "/v1/embeddings", {"input": TEXTS}),
    "score, 1 pair": (RERANK_BASE, "/score", {"queries": "fox", "documents": TEXTS[0]}),
    "rerank, 8 documents": (RERANK_BASE, "/rerank", {"query": "fox", "documents": TEXTS}),
}


def main() -> None:
    print(f"latency of one client, median of {TURNS} turns, ms:")
    for model in (BERT_BASE, RERANK_BASE):
        with servers(model) as (ours, theirs):
            for name, (wanted, path, body) in ASKED.items():
                if wanted is model:
                    print(row(name, *measured(ours, theirs, path, body)))


@contextmanager
def servers(model: PoolingModel) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    (folder,) = made(model)
    env = {
        "BATON_MODEL__TASK": model.task,
        "BATON_MODEL__DTYPE": "float32",
        "BATON_ENGINE__THREADS": "1",
        "BATON_ENGINE__ARGS__ENFORCE_EAGER": "true",
    }
    flags = ("--mode", "replicated", "--model", str(folder), "--name", "baton-tiny")
    with (
        fleet(*flags, env=env) as running,
        peer(folder, "--runner", "pooling") as url,
        httpx.Client(base_url=running.wait_ready().url, timeout=180) as ours,
        httpx.Client(base_url=url, timeout=180) as theirs,
    ):
        yield ours, theirs


def measured(
    ours: httpx.Client, theirs: httpx.Client, path: str, body: dict[str, Any]
) -> tuple[list[float], list[float], float]:
    """Milliseconds of each turn, and by how much numbers differ at most."""
    times: dict[httpx.Client, list[float]] = {ours: [], theirs: []}
    answers: dict[httpx.Client, Any] = {}
    for turn in range(WARM + TURNS):
        for client in (ours, theirs) if turn % 2 else (theirs, ours):
            began = time.perf_counter()
            answer = client.post(path, json=body).raise_for_status()
            if turn >= WARM:
                times[client].append((time.perf_counter() - began) * 1000)
            answers[client] = answer.json()
    mine, other = (numbers(answers[client]) for client in (ours, theirs))
    return times[ours], times[theirs], max(abs(a - b) for a, b in zip(mine, other, strict=True))


def numbers(answer: Any) -> list[float]:
    """All that the model made."""
    rows = answer.get("data") or sorted(answer["results"], key=lambda row: row["index"])
    found = [row.get("embedding", row.get("score", row.get("relevance_score"))) for row in rows]
    return [n for part in found for n in (part if isinstance(part, list) else [part])]


def row(name: str, ours: list[float], theirs: list[float], apart: float) -> str:
    mine, other = statistics.median(ours), statistics.median(theirs)
    ratio = mine / other
    sentence = (
        f"{name}: {mine:.1f} and {other:.1f} ms of vllm serve, ratio {ratio:.3f} (at most "
        f"{RATIO_MAX}); numbers differ by {apart:.1e} at most"
    )
    return verdict(ratio <= RATIO_MAX and apart <= EXACT, sentence)


if __name__ == "__main__":
    main()
