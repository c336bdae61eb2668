"""Each engine argument that changes what KV means is a part of the fingerprint, by its name."""

from __future__ import annotations

import os
from typing import Any

import pytest

from common.config import EngineConfig, from_mapping
from common.engine.fingerprint import fingerprint_of, parts_of
from common.engine.vllm.args import (
    adapter_slots,
    argument_parts,
    as_vllm_takes,
    library_environment,
    prepare_worker,
    worker_environment,
)
from common.engine.vllm.argument_table import KV_ARGUMENTS, UNTESTED, WORKS

#: Written out here once more, so that none can be lost by accident.
EXPECTED = {
    *("hf_overrides", "hf_config_path", "config_format", "load_format", "revision"),
    *("quantization", "quantization_config", "kv_cache_dtype", "kv_cache_dtype_skip_layers"),
    *("model_impl", "model_class_overrides", "model_loader_extra_config", "trust_remote_code"),
    *("attention_backend", "attention_config", "disable_sliding_window", "prefix_match_unit"),
    *("mamba_block_size", "mamba_cache_dtype", "mamba_cache_mode", "mamba_config"),
    *("mamba_ssm_cache_dtype", "use_replayssm", "engram_config", "language_model_only"),
    *("mm_encoder_attn_dtype", "mm_encoder_fp8_scale_path", "mm_processor_kwargs"),
    *("video_pruning_method", "video_pruning_rate"),
}


def fingerprint(given: dict[str, Any]) -> str:
    return fingerprint_of(parts_of(argument_parts(given)))


def test_the_list_is_whole() -> None:
    assert KV_ARGUMENTS == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_another_value_is_another_fingerprint(name: str) -> None:
    one, other = fingerprint({name: "a"}), fingerprint({name: "b"})
    assert len({one, other, fingerprint({})}) == 3


def test_no_other_argument_changes_it() -> None:
    others = (WORKS.keys() | UNTESTED.keys()) - EXPECTED
    assert {name for name in others if fingerprint({name: 1}) != fingerprint({})} == set()


def test_the_seed_counts_where_weights_are_drawn() -> None:
    dummy = {"load_format": "dummy"}
    assert fingerprint(dummy | {"seed": 1}) != fingerprint(dummy | {"seed": 2})


def test_the_table_that_vllm_does_not_convert_is_made_its_struct() -> None:
    given = {"structured_outputs_config": {"backend": "guidance"}, "seed": 1}
    taken = as_vllm_takes(given)
    assert taken["structured_outputs_config"].backend == "guidance"
    assert taken["seed"] == 1
    assert as_vllm_takes({"seed": 1}) == {"seed": 1}
    with pytest.raises((TypeError, ValueError)):
        as_vllm_takes({"structured_outputs_config": {"backnd": "guidance"}})


def test_a_worker_keeps_the_adapters_of_its_own_model_in_memory() -> None:
    """And an engine without adapters has no place for any."""
    models = {name: {"path": "baton-tiny"} for name in ("chat", "code")}
    adapters = {f"a{n}": {"path": f"/a{n}", "base": "chat"} for n in range(9)}
    workers = {f"d-{name}": {"model": name} for name in models}
    config = from_mapping({"models": models, "adapters": adapters, "decode": workers})
    of_model = {name: config.of_model(name) for name in models}
    assert adapter_slots(of_model["chat"], config.decode["d-chat"].engine) == 9
    assert adapter_slots(of_model["code"], config.decode["d-code"].engine) == 0


def test_the_environment_of_libraries_follows_the_engine() -> None:
    engine = EngineConfig(threads=3)
    plain = library_environment(engine, 2, {"PATH": "/bin"})
    assert plain["PATH"] == "/bin"
    assert plain["OMP_NUM_THREADS"] == plain["NUMBA_NUM_THREADS"] == "3"
    assert "TORCHDYNAMO_DISABLE" not in plain
    assert "VLLM_CPU_OMP_THREADS_BIND" not in plain
    assert library_environment(engine, 2, {}, eager=True)["TORCHDYNAMO_DISABLE"] == "1"
    ranks = EngineConfig(args={"tensor_parallel_size": 2, "enforce_eager": True})
    assert library_environment(ranks, 1, {})["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert library_environment(ranks, 1, {})["TORCHDYNAMO_DISABLE"] == "1"


def test_who_sets_the_environment_of_libraries_is_obeyed_where_it_is_safe() -> None:
    given = {"OMP_NUM_THREADS": "7", "VLLM_CPU_KVCACHE_SPACE": ""}
    fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    made = library_environment(EngineConfig(threads=3), 1, given | fixed)
    assert made["OMP_NUM_THREADS"] == made["NUMBA_NUM_THREADS"] == "7"
    assert "VLLM_CPU_KVCACHE_SPACE" not in made
    assert {name: made[name] for name in fixed} == dict.fromkeys(fixed, "0")
    assert library_environment(EngineConfig(threads=3), 1, made) == made, "nothing is left to do"


def test_a_process_gets_exactly_that_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"VLLM_CPU_KVCACHE_SPACE": "", "A": "b"}
    monkeypatch.setattr("common.engine.vllm.args.os.environ", given)
    worker = from_mapping({"decode": {"d0": {"engine": {"threads": 2}}}})
    expected = worker_environment(worker, worker.decode["d0"].engine, {"A": "b"})
    prepare_worker(worker, worker.decode["d0"].engine)
    assert os.environ == expected
    assert expected["TORCHDYNAMO_DISABLE"] == "1", "the embedded model is not compiled"
