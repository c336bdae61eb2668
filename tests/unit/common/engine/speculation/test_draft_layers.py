"""What the connector sees of a KV cache in which a draft model has layers, too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.config import SpeculationConfig
from common.engine.speculation.draft_layers import (
    drafter_parts,
    drafter_token_bytes,
    without_draft_layers,
)
from common.errors import ConfigError

MODEL = ["model.layers.0.attn", "model.layers.1.attn"]
DRAFT = ["draft_model.model.layers.0.attn"]
HEAD = ["model.layers.2.attn"]
"""vLLM numbers the layers of an EAGLE head, and of most MTP, on from the model's."""
MTP = ["mtp.layers.0.attn"]
"""So it names those of other MTP."""


@dataclasses.dataclass(frozen=True)
class Spec:
    kv_cache_specs: dict[str, str] | None = None


@dataclasses.dataclass
class Tensor:
    layers: list[str]
    offset: int = 0


@dataclasses.dataclass
class Group:
    layer_names: list[str]
    kv_cache_spec: Spec = dataclasses.field(default_factory=Spec)


@dataclasses.dataclass
class Cache:
    kv_cache_tensors: list[Tensor]
    kv_cache_groups: list[Group]


def engine(method: str) -> Any:
    """Of a model with two layers."""
    speculative = SimpleNamespace(
        uses_draft_model=lambda: method == "draft_model",
        uses_draft_kv_cache=lambda: method in ("draft_model", "eagle", "mtp"),
        draft_model_config=SimpleNamespace(
            get_num_kv_heads=lambda _: 4, get_head_size=lambda: 32, get_num_layers=lambda _: 3
        ),
        draft_parallel_config=None,
    )
    model = SimpleNamespace(get_total_num_hidden_layers=lambda: len(MODEL))
    return SimpleNamespace(speculative_config=speculative if method else None, model_config=model)


def seen(tensors: list[Tensor], groups: list[Group], method: str = "draft_model") -> Cache:
    made: Any = Cache(tensors, groups)
    kept: Any = without_draft_layers(engine(method), made)
    assert isinstance(kept, Cache)
    return kept


@pytest.mark.parametrize("method", ["", "ngram", "draft_model", "eagle"])
def test_a_cache_without_a_drafter_is_left_alone(method: str) -> None:
    made: Any = Cache([Tensor(MODEL)], [Group(MODEL)])
    assert without_draft_layers(engine(method), made) is made


@pytest.mark.parametrize(
    ("method", "draft"), [("draft_model", DRAFT), ("eagle", HEAD), ("mtp", HEAD), ("mtp", MTP)]
)
def test_layers_of_the_drafter_are_left_out_of_its_tensor_and_group(
    method: str, draft: list[str]
) -> None:
    specs = Spec({name: name for name in MODEL + draft})
    kept = seen([Tensor(MODEL + draft, 5)], [Group(MODEL + draft, specs)], method)
    assert kept.kv_cache_tensors == [Tensor(MODEL, 5)]
    assert kept.kv_cache_groups == [Group(MODEL, Spec({name: name for name in MODEL}))]


def test_a_tensor_of_the_drafter_alone_is_left_out() -> None:
    kept = seen([Tensor(MODEL), Tensor(DRAFT, 90)], [Group(MODEL + DRAFT)])
    assert kept.kv_cache_tensors == [Tensor(MODEL)]


@pytest.mark.parametrize(
    ("tensors", "groups", "says"),
    [
        ([Tensor(DRAFT + MODEL)], [Group(MODEL + DRAFT)], "lies among"),
        ([Tensor([MODEL[0], *DRAFT, MODEL[1]])], [Group(MODEL + DRAFT)], "lies among"),
        ([Tensor(MODEL), Tensor(DRAFT)], [Group(MODEL), Group(DRAFT)], "blocks of another kind"),
    ],
)
def test_what_cannot_be_told_apart_is_refused(
    tensors: list[Tensor], groups: list[Group], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"speculation\.drafter: .*{says}"):
        seen(tensors, groups)


def test_the_fingerprint_names_a_draft_model_whose_kv_is_handed_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1}')
    base = {"method": "draft_model", "drafter": str(tmp_path)}
    assert drafter_parts(SpeculationConfig(method="ngram")) == {}
    assert drafter_parts(SpeculationConfig(**base)) == {}  # type: ignore[arg-type]
    parts = drafter_parts(SpeculationConfig(**base, hand_over=True))  # type: ignore[arg-type]
    assert parts["drafter_config"] == '{"a": 1}'
    assert "drafter" in parts
    own = SpeculationConfig(method="mtp", hand_over=True)
    assert drafter_parts(own) == {"drafter": "mtp"}, "its weights are among the model's"


@pytest.mark.parametrize(
    ("method", "bytes_"), [("draft_model", 1536), ("eagle", 1536), ("ngram", 0), ("", 0)]
)
def test_the_kv_of_a_drafter_takes_room(method: str, bytes_: int) -> None:
    assert drafter_token_bytes(engine(method), 2) == bytes_
