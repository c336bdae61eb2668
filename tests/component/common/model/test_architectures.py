"""The architectures read from vLLM's source are those that it registers."""

from __future__ import annotations

import json
import subprocess
import sys

from common.model.architectures import GENERATING, PURPOSES, REGISTRY
from common.model.vllm_source import literal_tables

REGISTERED = """
import json
from vllm.config.model import iter_architecture_defaults
from vllm.model_executor.models.registry import ModelRegistry
found = sorted(ModelRegistry.get_supported_archs()), list(iter_architecture_defaults())
print(json.dumps(found))
"""


def test_each_architecture_is_in_one_of_the_tables_and_endings_mean_what_vllm_means() -> None:
    program = [sys.executable, "-c", REGISTERED]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    names, endings = json.loads(done.stdout.splitlines()[-1])
    tables = literal_tables("vllm", REGISTRY)
    others = ("_SPECULATIVE_DECODING_MODELS", "_TRANSFORMERS_BACKEND_MODELS")
    read = {name for table in (*GENERATING, *PURPOSES, *others) for name in tables[table]}
    assert sorted(read) == names
    read_endings = literal_tables("vllm", "config/model.py")["_SUFFIX_TO_DEFAULTS"]
    assert json.loads(json.dumps(read_endings)) == endings
