"""The table of what is not handed over has each such layer of the installed vLLM, and the models
that have it."""

from __future__ import annotations

from common.engine.vllm.kv_kinds import KINDS, why_kv_stays
from tests.component.common.engine.vllm.model_source import (
    keeps_another_kind,
    reached,
    registered,
)

#: Architectures that use a part of a model without the layers, by its name.
WITHOUT = {
    "CrossAttention": {  # Whisper's encoder
        "MoonshotKimiaForCausalLM",
        "MossTranscribeDiarizeForConditionalGeneration",
        "UltravoxModel",
        "VoxtralForConditionalGeneration",
        "VoxtralRealtimeGeneration",
    },
    "WhisperCausalAttentionWithBlockPooling": {"VoxtralForConditionalGeneration"},
}


def found() -> dict[str, set[str]]:
    """By layer that keeps another kind, the architectures whose code leads to it."""
    by_layer: dict[str, set[str]] = {}
    for architecture in registered():
        for place in filter(keeps_another_kind, reached(architecture)):
            by_layer.setdefault(place[1], set()).add(architecture)
    return by_layer


def test_each_layer_of_vllm_that_keeps_another_kind_is_in_the_table() -> None:
    """Where a configuration decides, a model's code may lead to layers that it does not have."""
    by_layer = found()
    assert sorted(by_layer) == sorted(layer for kind in KINDS for layer in kind.layers)
    for kind in KINDS:
        having = {
            name for layer in kind.layers for name in by_layer[layer] - WITHOUT.get(layer, set())
        }
        assert kind.architectures <= registered().keys()
        assert kind.asked_for or having == kind.architectures, kind.name


def test_models_whose_kind_is_handed_over_are_taken() -> None:
    refused = {name for name in registered() if why_kv_stays({"architectures": [name]})}
    assert refused == {name for kind in KINDS for name in kind.architectures}
