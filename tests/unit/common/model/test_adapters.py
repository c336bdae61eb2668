"""The files of a LoRA adapter: what names them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.model.adapters import (
    CONFIG,
    DIGEST_CHARS,
    WEIGHTS,
    checked_adapter,
    digest_of,
    name_of_adapter,
    why_no_name,
)
from common.model.embedded import ensure_embedded_model
from common.model.weights import Recipe
from tests.rigs.adapters import make_adapter


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_embedded_model(tmp_path_factory.mktemp("model"))


def change(folder: Path, **told: object) -> None:
    file = folder / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | told))


def cut(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-7])


def test_equal_files_have_one_id_and_others_another(tmp_path: Path, base: Path) -> None:
    one, same = make_adapter(tmp_path / "one", 1), make_adapter(tmp_path / "same", 1)
    other = make_adapter(tmp_path / "other", 2)
    found = [checked_adapter("sql", str(folder), base, 16) for folder in (one, same, other)]
    assert found[0] == found[1] != found[2]
    assert name_of_adapter(found[0]) == "sql"
    assert len(found[0].rpartition("@")[2]) == DIGEST_CHARS
    change(same, lora_alpha=99)
    assert digest_of(str(same)) != digest_of(str(one)), "what scales the weights counts, too"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "has no adapter_config.json"),
        (lambda folder: (folder / WEIGHTS).unlink(), "has no adapter_model.safetensors"),
        (lambda folder: (folder / CONFIG).write_text("{"), "adapter_config.json is damaged"),
        (lambda folder: change(folder, peft_type="LOHA"), "is of no LoRA adapter"),
        (lambda folder: change(folder, r="8"), "says no rank"),
        (cut, "adapter_model.safetensors is damaged"),
        (lambda folder: change(folder, r=17), "set [engine.args] max_lora_rank = 32"),
        (lambda folder: change(folder, rank_pattern={"q_proj": 600}), "vLLM takes 512 at most"),
        (lambda folder: make_adapter(folder, 1, layers=7), "layers.4.mlp.down_proj, which the"),
    ],
)
def test_what_cannot_be_served_is_told(
    tmp_path: Path, base: Path, damage: Callable[[Path], None], says: str
) -> None:
    folder = make_adapter(tmp_path / "a", 1)
    damage(folder)
    with pytest.raises(ConfigError) as refused:
        checked_adapter("sql", str(folder), base, 16)
    assert refused.value.message.startswith("adapters.sql.path: ")
    assert says in refused.value.message


def test_an_adapter_of_a_wider_model_is_of_another_base(tmp_path: Path, base: Path) -> None:
    folder = make_adapter(tmp_path / "a", 1, recipe=Recipe(hidden=512))
    with pytest.raises(ConfigError, match=r"another base .baton-tiny.: its .* the model's is 256"):
        checked_adapter("sql", str(folder), base, 16)


def test_a_base_whose_weights_cannot_be_read_here_is_left_to_the_engine(tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "a", 1, layers=7)
    (tmp_path / "base").mkdir()
    assert checked_adapter("sql", str(folder), tmp_path / "base", 16)


def test_a_missing_folder_is_told(base: Path) -> None:
    for path in ("", "/nowhere"):
        with pytest.raises(ConfigError, match="there is no folder"):
            checked_adapter("sql", path, base, 16)


@pytest.mark.parametrize("name", ["", "a@b", "x" * 65, "a\n"])
def test_names_that_cannot_be_used(name: str) -> None:
    assert "1 to 64 printable characters" in why_no_name(name)
    assert not why_no_name("team/sql-2")
