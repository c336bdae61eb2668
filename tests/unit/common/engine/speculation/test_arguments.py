"""What vLLM is given for `[speculation]`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.config import EngineConfig, SpeculationConfig, WorkerConfig
from common.engine.speculation.arguments import (
    SCHEDULER,
    WORKER,
    by_batch,
    engine_arguments,
    samples_apart,
    without_speculation,
)
from common.errors import ConfigError


def worker(**speculation: Any) -> WorkerConfig:
    engine = EngineConfig(max_num_seqs=32)
    return WorkerConfig(engine=engine, speculation=SpeculationConfig(**speculation))


def test_an_engine_without_speculation_gets_nothing() -> None:
    assert engine_arguments(worker(), on_cpu=True) == {}


def test_ngram_gets_its_bounds_and_our_classes_on_cpu_alone() -> None:
    asked = worker(method="ngram", tokens=3, ngram_min=1, ngram_max=7)
    given = engine_arguments(asked, on_cpu=True)
    assert given["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [(1, 32, 3)],
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 7,
    }
    assert given["async_scheduling"] is False
    assert (given["worker_cls"], given["scheduler_cls"]) == (WORKER, SCHEDULER)
    assert not {"worker_cls", "scheduler_cls"} & engine_arguments(asked, on_cpu=False).keys()


@pytest.mark.parametrize(
    ("batch_max", "made"),
    [
        (0, [(1, 32, 4)]),
        (32, [(1, 32, 4)]),
        (31, [(1, 31, 4), (32, 32, 0)]),
        (8, [(1, 8, 4), (9, 32, 0)]),
    ],
)
def test_above_a_batch_nothing_is_drafted(batch_max: int, made: list[tuple[int, int, int]]) -> None:
    assert by_batch(4, batch_max, 32) == made


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3"])
def test_a_drafter_must_be_there(method: str, tmp_path: Path) -> None:
    asked = worker(method=method, drafter=str(tmp_path))
    with pytest.raises(ConfigError, match=r"speculation\.drafter: .*no folder of a model"):
        engine_arguments(asked, on_cpu=True)
    (tmp_path / "config.json").write_text("{}")
    given = engine_arguments(asked, on_cpu=True)["speculative_config"]
    assert (given["method"], given["model"]) == (method, str(tmp_path))


def test_mtp_drafts_with_the_models_own_layers() -> None:
    given = engine_arguments(worker(method="mtp", tokens=2), on_cpu=True)["speculative_config"]
    assert (given["method"], given["num_speculative_tokens"]) == ("mtp", 2)
    assert "model" not in given


def test_suffix_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs the package arctic-inference"):
        engine_arguments(worker(method="suffix"), on_cpu=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert engine_arguments(worker(method="suffix"), on_cpu=True)


def test_requests_without_drafts_are_judged_as_on_a_plain_engine() -> None:
    made: Any = SimpleNamespace(
        speculative_config=object(), parallel_config=SimpleNamespace(worker_cls=WORKER)
    )
    assert samples_apart(made)
    plain: Any = without_speculation(made)
    assert plain.speculative_config is None
    assert made.speculative_config is not None
    assert without_speculation(plain) is plain
    made.parallel_config.worker_cls = "auto"
    assert not samples_apart(made)
