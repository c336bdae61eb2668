"""Tiny pooling models with random weights: an embedder that reads in both directions, a decoder
that vLLM converts into one, a cross-encoder, and a classifier.

They are cached beside the other checkpoints, and made by a process of their own, as those are.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.model.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID, write_tokenizer
from common.model.embedded import ensure_embedded_model

REVISION = 1
ROOT = Path(__file__).parents[2]
SECONDS = 240
CONTEXT = 512
#: Weights of the usual width make nearly the same vector of every text.
WIDE = {"initializer_range": 0.2}
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    **WIDE,
}
#: Tokenizers of cross-encoders tell the two texts of a pair apart.
INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]


@dataclass(frozen=True)
class PoolingModel:
    key: str
    #: As in `[model]`.
    task: str
    model_type: str
    #: transformers' class.
    maker: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where it is cached, made or not."""
        recipe = json.dumps([REVISION, self.model_type, self.maker, self.config], sort_keys=True)
        digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
        return ensure_embedded_model().parent / f"pooling-{self.key}-{digest}"


def _bert(key: str, task: str, maker: str, **more: Any) -> PoolingModel:
    return PoolingModel(key, task, "bert", maker, {**SIZES, **more})


BERT_EMBED = _bert("bert-embed", "embed", "BertModel")
BERT_RERANK = _bert("bert-rerank", "rerank", "BertForSequenceClassification", num_labels=1)
BERT_CLASSIFY = _bert("bert-classify", "classify", "BertForSequenceClassification", num_labels=3)
QWEN_EMBED = PoolingModel(
    "qwen-embed",
    "embed",
    "qwen3",
    "Qwen3ForCausalLM",
    {
        **SIZES,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "is_matryoshka": True,
    },
)
#: As large as those that people serve, for figures of latency: 110 million weights.
BERT_BASE = _bert(
    "bert-base",
    "embed",
    "BertModel",
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    initializer_range=0.02,
)
RERANK_BASE = _bert(
    "rerank-base",
    "rerank",
    "BertForSequenceClassification",
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    initializer_range=0.02,
    num_labels=1,
)
MODELS = (BERT_EMBED, BERT_RERANK, BERT_CLASSIFY, QWEN_EMBED, BERT_BASE, RERANK_BASE)


def made(*models: PoolingModel) -> list[Path]:
    """Their folders. Makes those that the cache lacks. Raises RuntimeError with the last words of
    the process."""
    lacking = [model.key for model in models if not model.folder.is_dir()]
    if lacking:
        done = subprocess.run(
            [sys.executable, "-m", "tests.zoo.pooling", *lacking],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"no checkpoints of {lacking}: {done.stderr[-2000:]}")
    return [model.folder for model in models]


def _make(model: PoolingModel) -> None:
    with tempfile.TemporaryDirectory(dir=model.folder.parent, prefix=".making-") as scratch:
        folder = Path(scratch) / model.folder.name
        _write(model, folder)
        try:
            folder.rename(model.folder)
        except OSError:  # another process was first
            if not model.folder.is_dir():
                raise


def _write(model: PoolingModel, folder: Path) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(model.model_type, **model.config)
    torch.manual_seed(0)
    getattr(transformers, model.maker)(config).to(torch.float32).save_pretrained(folder)
    write_tokenizer(folder, CONTEXT)
    file = folder / "tokenizer_config.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(told | {"model_input_names": INPUT_NAMES}), encoding="utf-8")


def main() -> None:
    by_key = {model.key: model for model in MODELS}
    for key in sys.argv[1:]:
        _make(by_key[key])


if __name__ == "__main__":
    main()
