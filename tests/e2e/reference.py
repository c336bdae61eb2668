"""One plain vLLM engine, in a process of its own: what the disaggregated path must equal.

Reads {"model", "prompts", "max_tokens"} as JSON on stdin, writes {"tokens", "margin"} on stdout:
the greedy ids of each prompt, and the smallest gap between the best and the second log probability
on its way, which says how far float noise is from changing a decision. `asked`, if it is there,
holds for each prompt how it is sampled instead, in vLLM's words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from common.model.embedded import ensure_embedded_model

MARGIN = 1e-5
"""Float noise between batch shapes is near 1e-6; a decision closer than this would test luck."""


def plain_answers(
    prompts: list[list[int]], max_tokens: int, asked: list[Any] | None = None
) -> list[list[int]]:
    """What that engine makes of the embedded model; it has ended when this returns. Greedy answers
    must be clear of the `MARGIN`."""
    question = {"model": str(ensure_embedded_model()), "prompts": prompts, "asked": asked}
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.reference"],
        input=json.dumps(question | {"max_tokens": max_tokens}),
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"VLLM_USE_AOT_COMPILE": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert asked or min(answer["margin"]) > MARGIN, "the model decides too closely to test equality"
    tokens: list[list[int]] = answer["tokens"]
    return tokens


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    from vllm import LLM, SamplingParams

    question = json.load(sys.stdin)
    engine = LLM(
        model=question["model"],
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=256 << 20,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
    )
    greedy = {"temperature": 0.0, "max_tokens": question["max_tokens"], "ignore_eos": True}
    inputs = [{"prompt_token_ids": prompt} for prompt in question["prompts"]]
    asked = question.get("asked") or [{}] * len(inputs)
    sampling = [SamplingParams(**greedy | one | {"logprobs": 2}) for one in asked]
    outputs = [output.outputs[0] for output in engine.generate(inputs, sampling, use_tqdm=False)]
    answer = {
        "tokens": [list(output.token_ids) for output in outputs],
        "margin": [min(_gap(step) for step in output.logprobs) for output in outputs],
    }
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def _gap(step: dict[int, object]) -> float:
    best, second = sorted((entry.logprob for entry in step.values()), reverse=True)[:2]  # type: ignore[attr-defined]
    return float(best - second)


if __name__ == "__main__":
    main()
