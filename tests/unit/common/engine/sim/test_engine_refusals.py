"""What would change the text or add to it is refused by the simulated engine, by name."""

from __future__ import annotations

from typing import Any

import pytest

from common.engine.sim.model import not_modelled
from common.messages import Sampling, Structured, StructureKind

ASKED: list[tuple[str, Any]] = [
    ("logprobs", 0),
    ("prompt_logprobs", 1),
    ("logprob_token_ids", (1,)),
    ("allowed_token_ids", (1,)),
    ("bad_words", ("x",)),
    ("thinking_token_budget", 5),
]


@pytest.mark.parametrize(("name", "value"), ASKED)
def test_named(name: str, value: Any) -> None:
    assert not_modelled(Sampling(max_tokens=1, **{name: value})) == name


def test_structures_are_named_as_clients_name_them() -> None:
    structured = Structured(kind=StructureKind.JSON_OBJECT)
    assert not_modelled(Sampling(max_tokens=1, structured=structured)) == "structured_outputs"


def test_plain_sampling_is_modelled() -> None:
    assert not not_modelled(Sampling(max_tokens=1, temperature=0.5, seed=3, min_tokens=1))
