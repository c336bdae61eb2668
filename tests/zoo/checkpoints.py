"""Makes the checkpoints of the zoo: transformers' own model classes with wide random weights.

Theory of operation: weights of the usual initialization make a model that repeats one token for
ever, on which equality proves nothing (see `common.model.weights`). So each matrix is drawn anew,
as wide as its role asks for: queries and keys so that attention chooses, the head so that one token
wins. A head that is tied to the embedding favours the token that it reads; there the embedding is
narrow and the rest wide, so that what the layers add decides. Each tensor is drawn by its name, so
that a checkpoint depends on nothing but its family and `REVISION`. The folders are cached beside
the embedded model; one appears by one rename. Drawing starts torch's threads, and engines are
forked from the process that asks: so the checkpoints are made by a process of their own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from common.model.byte_tokenizer import write_tokenizer
from common.model.embedded import ensure_embedded_model
from tests.zoo.families import CONTEXT, FAMILIES, Family

REVISION = 2
ROOT = Path(__file__).parents[2]
SECONDS = 240
#: Standard deviations of outputs whose inputs have 1, by words in a matrix' name.
QUERY_KEY, HEAD, OTHER, OTHER_IF_TIED = 3.0, 2.4, 1.5, 3.0
EMBEDDING, TIED_EMBEDDING = 1.0, 0.03


def checkpoint(family: Family) -> Path:
    """The folder in which it is cached, made or not."""
    recipe = json.dumps([REVISION, family.model_type, family.config], sort_keys=True)
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return ensure_embedded_model().parent / f"zoo-{family.key}-{digest}"


def make_checkpoints(families: list[Family]) -> None:
    """Makes those that the cache lacks. Raises RuntimeError with the last words of the process."""
    lacking = [family.key for family in families if not checkpoint(family).is_dir()]
    if not lacking:
        return
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo.checkpoints", *lacking],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"no checkpoints of {lacking}: {done.stderr[-2000:]}")


def _make(family: Family) -> None:
    target = checkpoint(family)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / target.name
        _write(family, made)
        try:
            made.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise


def _write(family: Family, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.for_model(family.model_type, **family.config)
    several = hasattr(config, "vision_config")
    maker = AutoModelForImageTextToText if several else AutoModelForCausalLM
    torch.manual_seed(0)
    model = maker.from_config(config, dtype=torch.float32)
    model.generation_config.do_sample = False
    with torch.no_grad():
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        for name, tensor in model.named_parameters():
            values = _values(name, tuple(tensor.shape), tied=tied)
            if values is not None:
                tensor.copy_(torch.from_numpy(values))
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                tensor.add_(1.5)
    model.save_pretrained(folder)
    write_tokenizer(folder, CONTEXT)


def _values(name: str, shape: tuple[int, ...], *, tied: bool) -> np.ndarray[Any, Any] | None:
    """None for what keeps its initial values: norms, and the vectors of state layers."""
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    if name.endswith("bias"):
        std = 0.1
    elif len(shape) < 2 or "conv" in name:
        return None
    elif any(word in name for word in ("embed", "wte", "wpe")):
        std = TIED_EMBEDDING if tied else EMBEDDING
    else:
        std = _gain(name, tied=tied) / math.sqrt(shape[-1])
    return (draw.standard_normal(shape) * std).astype(np.float32)


def _gain(name: str, *, tied: bool) -> float:
    if any(word in name for word in ("q_proj", "k_proj", "qkv", "query_key_value", "c_attn")):
        return QUERY_KEY
    if "lm_head" in name or "embed_out" in name:
        return HEAD
    return OTHER_IF_TIED if tied else OTHER


def main() -> None:
    by_key = {family.key: family for family in FAMILIES}
    failed = 0
    for key in sys.argv[1:]:
        try:
            _make(by_key[key])
        except Exception as error:
            failed += 1
            print(f"{key}: {error!r}"[:400], file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
