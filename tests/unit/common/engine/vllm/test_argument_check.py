"""`[engine.args]` is checked when the file is read: the key's path, the reason, the way out."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import from_mapping
from common.engine.vllm.argument_check import fault_of, untested
from common.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("data_parallel_size", 2, "cannot be 2: the router spreads requests over workers; add"),
        ("pipeline_parallel_size", 2, "use tensor_parallel_size"),
        ("prefill_context_parallel_size", 2, "leave it out"),
        ("nnodes", 2, "a worker runs on one host"),
        ("runner", "pooling", 'cannot be "pooling": `task` of the model'),
        ("kv_offloading_size", 4, "vLLM takes one connector for KV"),
        ("speculative_config", {"method": "ngram"}, "use [speculation], which decode workers"),
        ("spec_method", "ngram", "use [speculation]"),
        ("enable_lora", 0, "must be of type bool"),
        ("fully_sharded_loras", True, "cannot be true: "),
        ("max_lora_rank", 12, "cannot be 12; what works: 1, 8, 16"),
        ("max_loras", 0, "the least is 1"),
        ("skip_tokenizer_init", True, "requests with grammars"),
        ("download_dir", "/x", "fetch the model with `hf download`"),
        ("block_size", 16, "is set by Baton; use engine.block_tokens"),
        ("kv_transfer_config", {}, "is set by Baton; use kv"),
        ("distributed_executor_backend", "ray", "is set by Baton; leave it out"),
        ("tensor_paralel_size", 2, "did you mean tensor_parallel_size? see the engine arguments"),
        ("xyz", 2, "vLLM has no such engine argument; see the engine arguments"),
        ("tensor_parallel_size", 0, "cannot be 0; the least is 1"),
        ("tensor_parallel_size", "2", 'must be of type int, not "2"'),
        ("tensor_parallel_size", True, "must be of type int, not true"),
        ("max_logprobs", -2, "the least is -1"),
        ("trust_remote_code", 1, "must be of type bool, not 1"),
        ("gpu_memory_utilization", "0.5", "must be of type float"),
        ("load_format", "gguf", 'cannot be "gguf"; what works: "auto", "hf"'),
        ("tokenizer_mode", "mistral", 'what works: "auto", "hf"'),
        ("cpu_offload_gb", False, "must be of type float, not false"),
        ("compilation_config", 3, "must be of type dict, not 3"),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(name: str, value: object, says: str) -> None:
    assert says in fault_of(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data_parallel_size", 1),
        ("runner", "generate"),
        ("enable_lora", False),
        ("enable_lora", True),
        ("max_lora_rank", 64),
        ("gpu_memory_utilization", 1),
        ("max_logprobs", -1),
        ("load_format", "dummy"),
        ("hf_overrides", {"rope_theta": 1.0}),
        ("attention_config", {}),
        ("pt_load_map_location", "cpu"),
        ("cpu_offload_gb", 4),
    ],
)
def test_what_works_and_what_changes_nothing_is_taken(name: str, value: object) -> None:
    assert fault_of(name, value) == ""


@pytest.mark.parametrize(
    ("tables", "path"),
    [
        ({"engine": {"args": {"nnodes": 2}}, "decode": {"d0": {}}}, "engine.args.nnodes"),
        ({"decode": {"d0": {"engine": {"args": {"nnodes": 2}}}}}, "decode.d0.engine.args.nnodes"),
        ({"prefill": {"p0": {"engine": {"args": {"x": 2}}}}}, "prefill.p0.engine.args.x"),
    ],
)
def test_reading_a_file_refuses_by_the_keys_path(tables: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_mapping(tables)
    assert refused.value.param == path
    assert "\n" not in refused.value.message


def test_what_was_never_tried_is_told_once() -> None:
    table = {"engine": {"args": {"quantization": "fp8", "enforce_eager": True}}}
    sentences = untested(from_mapping({"prefill": {"p0": table}, "decode": {"d0": table}}))
    assert [sentence.partition(":")[0] for sentence in sentences] == ["engine.args.quantization"]


@pytest.mark.parametrize("name", ["tokenizer", "max_logprobs", "load_format", "trust_remote_code"])
def test_what_concerns_the_model_is_alike_on_all_workers(name: str) -> None:
    values = {"max_logprobs": 5, "load_format": "hf", "trust_remote_code": True}
    table = {"engine": {"args": {name: values.get(name, "x")}}}
    with pytest.raises(ConfigError, match=rf"decode\.d0\.engine\.args\.{name}: differs"):
        from_mapping({"prefill": {"p0": table}, "decode": {"d0": {}}})
    config = from_mapping({"prefill": {"p0": table}, "decode": {"d0": table}})
    assert config.model_args == table["engine"]["args"]


def test_the_arguments_of_the_model_are_those_of_real_engines() -> None:
    told = {"engine": {"args": {"max_logprobs": 5}}}
    assert from_mapping(told).model_args == {"max_logprobs": 5}
    simulated = {"kind": "sim", "args": {"max_logprobs": 7}}
    tables = {"engine": {"kind": "sim"}, "decode": {"d0": {"engine": simulated}}}
    assert from_mapping(tables).model_args == {}
