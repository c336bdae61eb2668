"""The fingerprint has what changes the meaning of KV, and nothing else: one test per key, on the
configuration that vLLM really makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.engine.fingerprint import fingerprint_of, meaning_of
from tests.rigs.own_code_model import make_own_code_model

pytestmark = pytest.mark.timeout(240)

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
#: By name, an engine that keeps other KV than the first, and the part that tells it.
OTHER_KV: dict[str, tuple[dict[str, Any], str]] = {
    "rope": ({"args": {"hf_overrides": ROPE}}, "config"),
    "load_format": ({"args": {"load_format": "dummy"}}, "args.load_format"),
    "quantization": ({"args": {"quantization": "fp8"}}, "args.quantization"),
    "kv_cache_dtype": ({"args": {"kv_cache_dtype": "fp8_e5m2"}}, "kv_dtype"),
    "scales": (
        {"args": {"kv_cache_dtype_skip_layers": ["0"]}},
        "args.kv_cache_dtype_skip_layers",
    ),
    "model_impl": ({"args": {"model_impl": "transformers"}}, "args.model_impl"),
    "attention_backend": ({"args": {"attention_backend": "CPU_ATTN"}}, "args.attention_backend"),
    "disable_sliding_window": (
        {"args": {"disable_sliding_window": True}},
        "args.disable_sliding_window",
    ),
    "tensor_parallel_size": ({"args": {"tensor_parallel_size": 2}}, "tensor_parallel"),
    "block_tokens": ({"block_tokens": 64}, "block_tokens"),
}
SAME_KV: dict[str, dict[str, Any]] = {
    "text": {
        "args": {
            "max_logprobs": 5,
            "logprobs_mode": "raw_logits",
            "generation_config": "vllm",
            "override_generation_config": {"temperature": 0.5},
            "tokenizer_mode": "hf",
        }
    },
    "speed": {
        "args": {
            "enforce_eager": True,
            "optimization_level": 0,
            "gpu_memory_utilization": 0.5,
            "scheduling_policy": "priority",
            "long_prefill_token_threshold": 64,
            "num_gpu_blocks_override": 99,
            "disable_log_stats": True,
            "seed": 7,
        }
    },
    "sizes": {"kv_cache_mib": 128, "max_num_seqs": 3, "max_num_batched_tokens": 256},
    "caching": {"prefix_caching": False},
}


def fleet(model: str, engine: dict[str, Any]) -> dict[str, Any]:
    about = {"path": model, "dtype": "bfloat16", "max_model_len": 1024}
    return {"model": about, "decode": {"d0": {"engine": {"kv_cache_mib": 64} | engine}}}


def made(fleets: list[dict[str, Any]]) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.component.common.engine.vllm.fingerprints"],
        input=json.dumps(fleets),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    parts: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, dict[str, str]]:
    engines = {"": {}, **{name: engine for name, (engine, _) in OTHER_KV.items()}, **SAME_KV}
    found = made([fleet("baton-tiny", engine) for engine in engines.values()])
    return dict(zip(engines, found, strict=True))


@pytest.mark.parametrize("name", OTHER_KV)
def test_other_kv_has_another_fingerprint(parts: dict[str, dict[str, str]], name: str) -> None:
    part = OTHER_KV[name][1]
    assert parts[name].get(part) != parts[""].get(part)


@pytest.mark.parametrize("name", SAME_KV)
def test_the_same_kv_has_the_same(parts: dict[str, dict[str, str]], name: str) -> None:
    assert parts[name] == parts[""]


def test_weights_code_and_the_seed_of_dummy_weights_are_part_of_it(tmp_path: Path) -> None:
    model = make_own_code_model(tmp_path / "own")
    tuned = make_own_code_model(tmp_path / "tuned")
    weights = tuned / "model.safetensors"
    data = bytearray(weights.read_bytes())
    for place in range(len(data) // 4, len(data) // 2):  # a part of the layers was trained
        data[place] ^= 1
    weights.write_bytes(data)
    coded = make_own_code_model(tmp_path / "coded")
    (coded / "modeling_own.py").write_text((coded / "modeling_own.py").read_text() + "# other\n")
    trusted = {"trust_remote_code": True}
    dummy = trusted | {"load_format": "dummy"}
    first, again, other_weights, other_code, seed, other_seed = made(
        [
            fleet(str(model), {"args": trusted}),
            fleet(str(make_own_code_model(tmp_path / "again")), {"args": trusted}),
            fleet(str(tuned), {"args": trusted}),
            fleet(str(coded), {"args": trusted}),
            fleet(str(model), {"args": dummy | {"seed": 1}}),
            fleet(str(model), {"args": dummy | {"seed": 2}}),
        ]
    )
    assert first == again
    assert [key for key in first if first[key] != other_weights[key]] == ["weights"]
    assert [key for key in first if first[key] != other_code[key]] == ["code"]
    assert [key for key in seed if seed[key] != other_seed[key]] == ["args.seed"]


def test_another_processor_is_another_layout_and_not_another_meaning() -> None:
    """Workers on both hand over in the canonical form, and never byte for byte."""
    both = [{"amx": has, "avx512_bf16": True} for has in (True, False)]
    with_amx, without = made([fleet("baton-tiny", {}) | {"processor": has} for has in both])
    differs = {key for key in with_amx.keys() | without.keys() if with_amx[key] != without[key]}
    assert differs == {"attn_isa"}
    assert fingerprint_of(with_amx) != fingerprint_of(without)
    assert meaning_of(with_amx) == meaning_of(without)
    wide = fleet("baton-tiny", {"dtype": "float32"})
    one, other = made([wide | {"processor": has} for has in both])
    assert one == other


def test_a_warm_worker_keeps_the_same_kv_as_one_that_never_sleeps() -> None:
    warm = fleet("baton-tiny", {})
    warm["decode"]["d0"]["state"] = "warm"
    always, sometimes = made([fleet("baton-tiny", {}), warm])
    assert always == sometimes
