import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.model import embedded
from common.model.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE
from common.model.embedded import EMBEDDED_MODEL_NAME, ensure_embedded_model
from common.model.weights import Recipe

FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_embedded_model(tmp_path_factory.mktemp("cache"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_recipe_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    again = ensure_embedded_model(tmp_path)
    assert sorted(contents(model)) == FILES
    assert contents(again) == contents(model)
    assert again.name == model.name
    assert again.name.startswith(f"{EMBEDDED_MODEL_NAME}-")


def test_a_made_model_is_not_made_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_write_model", None)
    assert ensure_embedded_model(model.parent.parent) == model


def test_the_default_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ensure_embedded_model().parent == tmp_path / "baton" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ensure_embedded_model().parent == tmp_path / "home" / ".cache" / "baton" / "models"


def test_config_names_the_tokenizers_own_ids_and_the_weights_shapes(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    generation = json.loads((model / "generation_config.json").read_text())
    for key, token_id in (
        ("bos_token_id", BOS_ID),
        ("eos_token_id", EOS_ID),
        ("pad_token_id", PAD_ID),
    ):
        assert config[key] == generation[key] == token_id
    weights = load_file(model / "model.safetensors")
    assert all(tensor.dtype == np.float32 for tensor in weights.values())
    hidden, heads, kv_heads, dim = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )
    assert weights["model.embed_tokens.weight"].shape == (VOCAB_SIZE, hidden)
    assert weights["lm_head.weight"].shape == (VOCAB_SIZE, hidden)
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn"
        assert weights[f"{attention}.q_proj.weight"].shape == (heads * dim, hidden)
        assert weights[f"{attention}.k_proj.weight"].shape == (kv_heads * dim, hidden)
        assert weights[f"{attention}.o_proj.weight"].shape == (hidden, heads * dim)


def test_a_changed_recipe_has_another_folder() -> None:
    assert embedded._recipe_hash(Recipe()) != embedded._recipe_hash(Recipe(seed=19))


def test_processes_that_start_together_agree(model: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from common.model.embedded import *; "
        "print(ensure_embedded_model(Path(sys.argv[1]))); "
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = {process.communicate()[0].decode().strip() for process in processes}
    assert [process.returncode for process in processes] == [0] * 4
    assert answers == {str(tmp_path / "models" / model.name)}
    assert [path.name for path in (tmp_path / "models").iterdir()] == [model.name]
    assert contents(tmp_path / "models" / model.name) == contents(model)


def test_the_loser_of_a_race_uses_the_winners_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = embedded._write_model

    def write_after_another(folder: Path, recipe: Recipe) -> None:
        winner = tmp_path / "models" / folder.name
        winner.mkdir()
        (winner / "config.json").write_text("the winner's")
        write(folder, recipe)

    monkeypatch.setattr(embedded, "_write_model", write_after_another)
    assert contents(ensure_embedded_model(tmp_path)) == {"config.json": b"the winner's"}
    assert [path.name for path in (tmp_path / "models").iterdir()] == [model.name]


@pytest.mark.parametrize("step", ["_write_json", "write_tokenizer", "build_weights", "save"])
def test_an_interrupted_write_leaves_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embedded, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            ensure_embedded_model(tmp_path)
    assert list((tmp_path / "models").iterdir()) == []
    assert contents(ensure_embedded_model(tmp_path)) == contents(model)
