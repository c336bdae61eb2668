"""The names read from vLLM's source are those of its registries."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from common.model.parsers import REASONING, TOOL, known_parsers

REGISTERED = """
import json
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
found = [ToolParserManager.list_registered(), ReasoningParserManager.list_registered()]
print(json.dumps([sorted(names) for names in found]))
"""


def test_the_names_are_those_that_vllm_registers() -> None:
    program = [sys.executable, "-c", REGISTERED]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    tools, reasonings = json.loads(done.stdout.splitlines()[-1])
    assert list(known_parsers(TOOL)) == tools
    assert list(known_parsers(REASONING)) == reasonings
    assert "hermes" in tools


def test_reading_them_imports_nothing_of_vllm() -> None:
    program = (
        "import sys\nfrom common.model.parsers import *\nassert known_parsers(TOOL)\n"
        "print([name for name in sys.modules if name.startswith(('vllm', 'torch'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_where_vllm_is_not_installed_no_name_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.model.vllm_source.find_spec", lambda _: None)
    assert known_parsers(TOOL) == ()
