"""One plain vLLM engine, in a process of its own: what the disaggregated path must equal.

Reads lines of {"model", "prompts", "max_tokens"} as JSON on stdin, writes a line of {"tokens",
"margin"} on stdout for each: the greedy ids of each prompt, and the smallest gap between the best
and the second log probability on its way, which says how far float noise is from changing a
decision. `asked`, if it is there, holds for each prompt how it is sampled instead, in vLLM's words.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from common.engine.vllm_on_cpu import attends_without_amx
from common.model.embedded import ensure_embedded_model

SECONDS_MAX = 280.0
ANSWER = "answer: "
"""What the line of an answer begins with: libraries print lines, too."""
MARGIN = 1e-5
"""Float noise between batch shapes is near 1e-6; a decision closer than this would test luck."""


def plain_answers(
    prompts: list[list[int]],
    max_tokens: int,
    asked: list[Any] | None = None,
    model: Path | None = None,
) -> list[list[int]]:
    """What that engine makes of the embedded model, or of the one in this folder. The embedded
    model's engine waits for the next question, without a cache of this one; the other has ended
    when this returns. Greedy answers must be clear of the `MARGIN`."""
    question = {"prompts": prompts, "asked": asked, "max_tokens": max_tokens}
    if model is None:
        answer = _kept().ask(question | {"model": str(ensure_embedded_model())})
    else:
        answer = _asked(question | {"model": str(model)})
    assert asked or min(answer["margin"]) > MARGIN, "the model decides too closely to test equality"
    tokens: list[list[int]] = answer["tokens"]
    return tokens


def plain_adapter_answers(
    prompts: list[list[int]], max_tokens: int, adapters: Mapping[str, Path | None]
) -> dict[str, list[list[int]]]:
    """The same with each of these LoRA adapters of the embedded model, by name; None is none. The
    engine has more slots than adapters: vLLM on a CPU would compute tokens without an adapter by
    what is in the last one."""
    answer = _asked(
        {
            "model": str(ensure_embedded_model()),
            "prompts": prompts,
            "max_tokens": max_tokens,
            "adapters": {name: path and str(path) for name, path in adapters.items()},
            "engine": {"enable_lora": True, "max_loras": len(adapters) + 1},
        }
    )
    assert min(map(min, answer["margins"].values())) > MARGIN, "too close to test equality"
    tokens: dict[str, list[list[int]]] = answer["by_adapter"]
    return tokens


class _Engine:
    """The process of an engine, which ends with this one or with `close`."""

    def __init__(self) -> None:
        self._said = TemporaryFile("w+")  # noqa: SIM115 - open while the process is
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.reference"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"VLLM_USE_AOT_COMPILE": "0"},
        )

    def ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(SECONDS_MAX, self._process.kill)
        with self._asking:
            late.start()
            try:
                self._process.stdin.write(json.dumps(question) + "\n")
                self._process.stdin.flush()
                for line in self._process.stdout:
                    if line.startswith(ANSWER):
                        return json.loads(line.removeprefix(ANSWER))
            finally:
                late.cancel()
        self._process.wait()
        self._said.seek(0)
        raise AssertionError(f"the plain engine ended: {self._said.read()[-2000:]}")

    def close(self) -> None:
        self._process.communicate(timeout=SECONDS_MAX)


@functools.cache
def _kept() -> _Engine:
    return _Engine()


def _asked(question: dict[str, Any]) -> Any:
    """By an engine for this question alone."""
    engine = _Engine()
    answer = engine.ask(question)
    engine.close()
    return answer


def main() -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    for line in sys.stdin:
        sys.stdout.write("\n" + ANSWER + json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


@functools.lru_cache(maxsize=1)
def _engine(arguments: str) -> Any:
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs

    given = json.loads(arguments)
    if attends_without_amx(EngineArgs(**given).create_engine_config()):
        given["attention_backend"] = "CPU_MLA"
    return LLM(**given)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Starts the engine in this process, if the last question was not for the same. `engine`, if it
    is there, has further arguments of it.
    With `alone` the prompts are asked one after the other.
    Beside what the module's head names, the answer says what the engine keeps: for each KV cache
    group its kind, number of layers, tokens of a block and of its window or chunk, and the bytes of
    a block. `adapters`: folders of LoRA adapters by name, null for none; the answer then has tokens
    and margins by adapter."""
    from vllm import SamplingParams

    arguments = {
        "model": question["model"],
        "dtype": "float32",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 256 << 20,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
    }
    engine = _engine(json.dumps(arguments | question.get("engine", {})))
    engine.reset_prefix_cache()
    greedy = {"temperature": 0.0, "max_tokens": question["max_tokens"], "ignore_eos": True}
    if "adapters" in question:
        return _by_adapter(engine, question)
    inputs = [{"prompt_token_ids": prompt} for prompt in question["prompts"]]
    asked = question.get("asked") or [{}] * len(inputs)
    sampling = [SamplingParams(**greedy | one | {"logprobs": 2}) for one in asked]
    at_once = 1 if question.get("alone") else len(inputs)
    outputs = [
        output.outputs[0]
        for at in range(0, len(inputs), at_once)
        for output in engine.generate(
            inputs[at : at + at_once], sampling[at : at + at_once], use_tqdm=False
        )
    ]
    core = engine.llm_engine.engine_core.engine_core  # the one that runs in this process
    kept = core.scheduler.kv_cache_config
    return {
        "tokens": [list(output.token_ids) for output in outputs],
        "margin": [min(_gap(step) for step in output.logprobs) for output in outputs],
        "groups": [_group(group) for group in kept.kv_cache_groups],
        "block_bytes": kept.kv_cache_tensors[0].size // kept.num_blocks,
    }


def _by_adapter(engine: Any, question: dict[str, Any]) -> dict[str, Any]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    most = question["max_tokens"]
    greedy = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, logprobs=2)
    inputs = [{"prompt_token_ids": prompt} for prompt in question["prompts"]]
    tokens, margins = {}, {}
    for number, (name, path) in enumerate(question["adapters"].items(), 1):
        adapter = LoRARequest(name, number, path) if path else None
        made = engine.generate(inputs, greedy, lora_request=adapter, use_tqdm=False)
        tokens[name] = [list(one.outputs[0].token_ids) for one in made]
        margins[name] = [min(_gap(step) for step in one.outputs[0].logprobs) for one in made]
    return {"by_adapter": tokens, "margins": margins}


def _group(group: Any) -> list[Any]:
    spec = group.kv_cache_spec
    reach = getattr(spec, "sliding_window", 0) or getattr(spec, "attention_chunk_size", 0) or 0
    return [type(spec).__name__, len(group.layer_names), spec.block_size, reach]


def _gap(step: dict[int, object]) -> float:
    best, second = sorted((entry.logprob for entry in step.values()), reverse=True)[:2]  # type: ignore[attr-defined]
    return float(best - second)


if __name__ == "__main__":
    main()
