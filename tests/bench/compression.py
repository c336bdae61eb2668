"""What fp8 on the wire costs: time, as a ratio to a plain copy, and accuracy, as a model's logits.

The error is that of D's first token: the model computes a prompt's KV but for its last token, the
KV goes through the codec block by block, and the last token is computed on what came out, as D
does. It stands beside what torch's own cast to bfloat16 and to e4m3 (without scales) do to the same
KV, for the embedded model's weights are random and magnify every rounding. The model runs in
transformers, so that no engine is needed. For another model:
`python -m tests.bench.compression FOLDER`.
"""

from __future__ import annotations

import copy
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.blocks import Element
from common.kv.compression.fp8 import Fp8Codec, PageFormat
from common.model.embedded import ensure_embedded_model

BLOCK_TOKENS = 128
LENGTHS = (200, 600, 1500)
PROMPTS_EACH = 4
TOP = 20
ROUNDS = 7
SAMPLE_BYTES = 8 << 20
TORCH: dict[Element, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Error:
    """`kv`: relative, root mean square, of the worst layer. `logit`: largest difference of any;
    `logprob`: of any of the `TOP` likeliest tokens. `spread`: of the logits, their mean standard
    deviation. `same`: share of prompts whose likeliest token is the same."""

    kv: float
    logit: float
    logprob: float
    spread: float
    same: float


def main() -> None:
    print("                 encode     decode   (times of a plain copy)   bytes    KV MB/s, both")
    for element in TORCH:
        what = PageFormat(element, (8, 2, BLOCK_TOKENS * 128), (2,))
        copied, encode, decode = _seconds(what)
        rate = SAMPLE_BYTES / (encode + decode) / 1e6
        share = what.fp8_page_bytes / what.page_bytes
        print(
            f"  {element:>9}  {encode / copied:8.1f}x  {decode / copied:8.1f}x"
            f"  {share:31.1%}  {rate:15.0f}"
        )
    report_error(ensure_embedded_model())


def report_error(folder: Path) -> None:
    print(
        f"  {folder.name}, first token after {len(LENGTHS) * PROMPTS_EACH} prompts of {LENGTHS} "
        "random tokens, on KV that went through"
    )
    for name, through in THROUGH.items():
        found = measured_error(folder, through)
        print(
            f"    {name:>13}: KV error {found.kv:.2%}, max logit difference {found.logit:.3f} "
            f"(logits' spread {found.spread:.2f}), max logprob difference of the {TOP} likeliest "
            f"{found.logprob:.3f}, same token {found.same:.0%}"
        )


def by_codec(pages: torch.Tensor) -> torch.Tensor:
    """`pages`: [blocks, heads, 2, tokens, head_dim] of float32, as all that go through."""
    blocks, heads, _, tokens, width = pages.shape
    what = PageFormat("float32", (heads, 2, tokens * width), (2,))
    raw = pages.contiguous().numpy().view(np.uint8).reshape(-1)
    encoded = np.empty(blocks * what.fp8_page_bytes, np.uint8)
    Fp8Codec(what).encode(raw, encoded)
    back = np.empty_like(raw)
    Fp8Codec(what).decode(encoded, back)
    return torch.from_numpy(back).view(torch.float32).reshape(pages.shape)


Through = Callable[[torch.Tensor], torch.Tensor]
THROUGH: dict[str, Through] = {
    "a copy": torch.clone,
    "bfloat16": lambda pages: pages.to(torch.bfloat16).float(),
    "e4m3 unscaled": lambda pages: pages.to(torch.float8_e4m3fn).float(),
    "our fp8": by_codec,
}


def measured_error(folder: Path, through: Through) -> Error:
    """In float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    pairs, errors = [], []
    for length in LENGTHS:
        for at in range(PROMPTS_EACH):
            draw = random.Random(f"{length}/{at}")
            prompt = torch.tensor([[draw.randint(10, 250) for _ in range(length)]])
            logits, error = _two_ways(model, prompt, through)
            pairs.append(logits)
            errors.append(error)
    plain, after = (torch.stack(each) for each in zip(*pairs, strict=True))
    likeliest = plain.topk(TOP).indices
    change = after.log_softmax(-1) - plain.log_softmax(-1)
    return Error(
        kv=max(errors),
        logit=(after - plain).abs().max().item(),
        logprob=change.gather(-1, likeliest).abs().max().item(),
        spread=plain.std(-1).mean().item(),
        same=(after.argmax(-1) == plain.argmax(-1)).float().mean().item(),
    )


def _two_ways(
    model: Any, prompt: torch.Tensor, through: Through
) -> tuple[list[torch.Tensor], float]:
    """Logits after the prompt, on its own KV and on what the other side would have; and the error
    of the worst layer's KV."""
    worst = 0.0
    with torch.no_grad():
        cache = model(prompt[:, :-1], use_cache=True).past_key_values
        other = copy.deepcopy(cache)
        for layer in other.layers:
            before = torch.stack([layer.keys[0], layer.values[0]])
            moved = _paged(before, through)
            worst = max(worst, ((moved - before).norm() / before.norm()).item())
            layer.keys, layer.values = moved[0:1].clone(), moved[1:2].clone()
        last = prompt[:, -1:]
        return [model(last, past_key_values=kv).logits[0, -1] for kv in (cache, other)], worst


def _paged(kv: torch.Tensor, through: Through) -> torch.Tensor:
    """`kv`: [2, heads, tokens, head_dim]; whole blocks of it go through."""
    _, heads, tokens, width = kv.shape
    blocks = -(-tokens // BLOCK_TOKENS)
    padded = torch.zeros(2, heads, blocks * BLOCK_TOKENS, width)
    padded[:, :, :tokens] = kv
    pages = padded.reshape(2, heads, blocks, BLOCK_TOKENS, width).permute(2, 1, 0, 3, 4)
    back = through(pages).permute(2, 1, 0, 3, 4).reshape(padded.shape)
    return back[:, :, :tokens]


def _seconds(what: PageFormat) -> tuple[float, float, float]:
    """A plain copy, encode and decode of `SAMPLE_BYTES`, the best of some rounds in turn."""
    values = torch.randn(SAMPLE_BYTES // what.page_bytes * what.items).to(TORCH[what.element])
    pages = values.view(torch.uint8).numpy()
    codec, back = Fp8Codec(what), np.empty_like(pages)
    encoded = np.empty(pages.nbytes // what.page_bytes * what.fp8_page_bytes, np.uint8)
    best = [float("inf")] * 3
    for _ in range(ROUNDS):
        marks = [time.perf_counter()]
        np.copyto(back, pages)
        marks.append(time.perf_counter())
        codec.encode(pages, encoded)
        marks.append(time.perf_counter())
        codec.decode(encoded, back)
        marks.append(time.perf_counter())
        best = [min(old, marks[at + 1] - marks[at]) for at, old in enumerate(best)]
    return best[0], best[1], best[2]


if __name__ == "__main__":
    report_error(Path(sys.argv[1]) if sys.argv[1:] else ensure_embedded_model())
