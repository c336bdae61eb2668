"""A tiny vision checkpoint: random weights, our tokenizer, and the family's own image processor.

PaddleOCR-VL gives its tokens positions by the grid of its images (M-RoPE), as the Qwen-VL families
do, and runs without torchvision, which those need for their videos.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from common.model.byte_tokenizer import BOS, EOS, PAD, VOCAB_SIZE, build_tokenizer

CONTEXT = 2048
IMAGE = "<|IMAGE_PLACEHOLDER|>"
IMAGE_START, IMAGE_END = "<|IMAGE_START|>", "<|IMAGE_END|>"
IMAGE_ID, IMAGE_START_ID, IMAGE_END_ID = VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 2
VOCAB = 272
PATCH, MERGE = 14, 2
PIXELS_MIN, PIXELS_MAX = (PATCH * MERGE) ** 2, 64 * (PATCH * MERGE) ** 2

#: A message's content is text, or parts of which some are images.
TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- else %}
        {%- for part in message['content'] %}
            {{- part['text'] if part['type'] == 'text' else 'IMAGE' }}
        {%- endfor %}
    {%- endif %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}
"""


def write_paddleocr_vl(folder: Path) -> None:
    from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration

    config = PaddleOCRVLConfig(
        text_config=_text("paddleocr_vl_text")
        | {"head_dim": 32, "rope_parameters": _rope(mrope_section=[4, 6, 6]), "use_bias": False},
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 8 * PATCH,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
        },
        image_token_id=IMAGE_ID,
        video_token_id=VOCAB - 1,
        vision_start_token_id=IMAGE_START_ID,
        vision_end_token_id=IMAGE_END_ID,
        tie_word_embeddings=False,
        architectures=["PaddleOCRVLForConditionalGeneration"],
    )
    _write(folder, PaddleOCRVLForConditionalGeneration, config, f"{IMAGE_START}{IMAGE}{IMAGE_END}")
    _write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "PaddleOCRVLImageProcessor",
            "processor_class": "PaddleOCRVLProcessor",
            "size": {"shortest_edge": PIXELS_MIN, "longest_edge": PIXELS_MAX},
            "patch_size": PATCH,
            "temporal_patch_size": 1,
            "merge_size": MERGE,
        },
    )


def _text(kind: str) -> dict[str, Any]:
    return {
        "model_type": kind,
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": VOCAB_SIZE - 7,
        "eos_token_id": VOCAB_SIZE - 6,
        "pad_token_id": VOCAB_SIZE - 5,
        "tie_word_embeddings": False,
    }


def _rope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": 10_000.0, **more}


def _write(folder: Path, model_class: Any, config: Any, image: str) -> None:
    import torch

    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() > 1:  # wide enough that answers depend on the prompt
                weights.normal_(0.0, 0.6 / weights[0].numel() ** 0.5 * 4)
            elif "bias" in name:
                weights.zero_()
    model.save_pretrained(folder)
    tokenizer = build_tokenizer()
    specials = (IMAGE, IMAGE_START, IMAGE_END)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE.replace("IMAGE", image),
            "extra_special_tokens": {"image_token": IMAGE},
        },
    )


def vision_model(folder: Path) -> Path:
    """The checkpoint, made there by a process of its own, so that its caller can still fork."""
    command = [sys.executable, "-m", "tests.zoo.vision", str(folder)]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True)
    return folder


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    write_paddleocr_vl(Path(sys.argv[1]))
