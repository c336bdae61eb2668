"""A model that cannot be served: each command says the same one line, and nothing is started or
imported that takes long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.model.embedded import ensure_embedded_model
from services.cli import main
from tests.rigs.processes import baton

EMBEDDING = {"architectures": ["Qwen3Model"], "model_type": "qwen3"}
ENCODER = {"architectures": ["BartForConditionalGeneration"], "is_encoder_decoder": True}
UNKNOWN = {"architectures": ["NobodyForCausalLM"]}
SPARSE = {"architectures": ["DeepseekV3ForCausalLM"], "index_topk": 64}
#: What cannot be served, by the file that says so, and the words by which it is refused.
REFUSED = [
    ("config.json", json.dumps(EMBEDDING).encode(), "Qwen3Model is an embedding model"),
    ("config.json", json.dumps(ENCODER).encode(), "BartForConditionalGeneration has an encoder"),
    ("config.json", json.dumps(UNKNOWN).encode(), "know no architecture 'NobodyForCausalLM'"),
    ("config.json", json.dumps(SPARSE).encode(), "it has sparse attention with an indexer"),
    ("config.json", b"{", "config.json is damaged"),
    ("model.safetensors", b"", "model.safetensors is damaged"),
    ("tokenizer.json", b"", "tokenizer.json is damaged"),
]
COMMANDS = [
    ("check", "--config", "FLEET"),
    ("up", "--config", "FLEET"),
    ("up", "--model", "MODEL", "--run-dir", "RUN"),
    ("doctor", "--model", "MODEL"),
    ("prefill", "--config", "FLEET", "--name", "p0"),
    ("decode", "--config", "FLEET", "--name", "d0"),
]
#: On a busy machine they tell what a clock tells on an idle one.
CPU_SECONDS_MAX = 2.0
NO_IMPORTS = """
import sys, time
from services.cli import main
status = main(sys.argv[1:])
print([name for name in sys.modules if name in ("vllm", "torch", "transformers")])
print(time.process_time())
sys.exit(status)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded model, which a test bends."""
    folder = tmp_path / "some-model"
    folder.mkdir()
    for file in ensure_embedded_model().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def fleet(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(
        f'[fleet]\nrun_dir = "{tmp_path}/run"\n[model]\npath = "{model}"\n'
        "[gateway]\nport = 0\n[health]\nport = 0\n[prefill.p0]\n[decode.d0]\n"
    )
    return path


def bend(model: Path, **changed: object) -> None:
    told = json.loads((model / "config.json").read_text()) | changed
    (model / "config.json").write_text(json.dumps(told))


def refusal(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    status = main([str(word) for word in words])
    printed = capfd.readouterr().err
    assert status == 2, printed
    assert printed.count("\n") == 1, printed
    return printed


@pytest.mark.parametrize(("file", "data", "sentence"), REFUSED)
def test_check_up_and_doctor_say_the_same(
    fleet: Path,
    model: Path,
    capfd: pytest.CaptureFixture[str],
    file: str,
    data: bytes,
    sentence: str,
) -> None:
    (model / file).write_bytes(data)
    said = refusal(capfd, "check", "--config", fleet)
    assert sentence in said
    assert refusal(capfd, "up", "--config", fleet) == said
    run_dir = fleet.parent / "run"
    assert refusal(capfd, "up", "--model", model, "--run-dir", run_dir) == said
    assert refusal(capfd, "doctor", "--model", model) == said
    assert main(["doctor", "--config", str(fleet)]) == 1
    assert sentence in capfd.readouterr().out


def test_doctor_tells_scripts_of_a_refused_model_alone(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bend(model, **UNKNOWN)
    assert main(["doctor", "--model", str(model), "--json"]) == 2
    (finding,) = json.loads(capfd.readouterr().out)
    assert (finding["name"], finding["level"]) == ("model", "fail")
    assert "know no architecture" in finding["fix"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_refusal_takes_two_seconds_and_imports_no_engine(
    fleet: Path, model: Path, command: tuple[str, ...]
) -> None:
    bend(model, **UNKNOWN)
    named = {"FLEET": str(fleet), "MODEL": str(model), "RUN": str(fleet.parent / "run")}
    program = [sys.executable, "-c", NO_IMPORTS, *(named.get(word, word) for word in command)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert "know no architecture 'NobodyForCausalLM'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    *_, imported, seconds = done.stdout.splitlines()
    assert (done.returncode, imported) == (2, "[]")
    assert float(seconds) < CPU_SECONDS_MAX


def test_a_good_model_passes(fleet: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(fleet)]) == 0
    main(["doctor", "--model", str(model)])
    assert f"pass  model          {model}" in capfd.readouterr().out


def test_simulated_engines_serve_whatever_has_a_tokenizer(fleet: Path, model: Path) -> None:
    bend(model, architectures=["NobodyForCausalLM"])
    (model / "model.safetensors").unlink()
    fleet.write_text(fleet.read_text() + '[engine]\nkind = "sim"\n')
    assert baton("check", "--config", str(fleet)).returncode == 0
    (model / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in baton("check", "--config", str(fleet)).stderr


def test_engine_arguments_are_refused_by_each_command(
    fleet: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet.write_text(fleet.read_text() + "[engine.args]\ndata_parallel_size = 2\n")
    for command in (("check",), ("up",), ("decode", "--name", "d0"), ("router",)):
        printed = refusal(capfd, *command, "--config", fleet)
        assert "engine.args.data_parallel_size: cannot be 2: the router spreads" in printed
    assert main(["doctor", "--config", str(fleet)]) == 1
    assert "add [decode.NAME] tables instead" in capfd.readouterr().out


def test_untested_engine_arguments_are_warned_of(
    fleet: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet.write_text(fleet.read_text() + '[engine.args]\nkv_cache_dtype = "fp8"\n')
    warning = "engine.args.kv_cache_dtype: vLLM gets it, but it was never tried with a handoff"
    assert main(["check", "--config", str(fleet)]) == 0
    assert f"warning: {warning}" in capfd.readouterr().err
    main(["doctor", "--config", str(fleet)])
    assert f"WARN  engine.args    {warning}" in capfd.readouterr().out
