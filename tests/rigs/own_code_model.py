"""A model with code of its own: the embedded model behind classes that only its folder has."""

from __future__ import annotations

import json
from pathlib import Path

from common.model.embedded import ensure_embedded_model

CONFIGURATION = """\
from transformers import LlamaConfig


class OwnConfig(LlamaConfig):
    model_type = "own_code"
"""
MODELING = """\
from transformers import LlamaForCausalLM, LlamaModel

from .configuration_own import OwnConfig


class OwnModel(LlamaModel):
    config_class = OwnConfig


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
OWN_CLASSES = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModel": "modeling_own.OwnModel",
    "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
}


def make_own_code_model(folder: Path) -> Path:
    """Writes it there, into a folder that is not there yet."""
    folder.mkdir()
    for file in ensure_embedded_model().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own_code",
        "auto_map": OWN_CLASSES,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODELING)
    return folder
