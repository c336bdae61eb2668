"""Files that are missing, cut or bent are refused by name before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from common.errors import ConfigError
from common.model.checkpoint import (
    INDEX,
    LFS,
    check_tokenizer,
    check_weights,
    read_model_config,
)
from common.model.resolve import resolve_model

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """The weights in one file."""
    save_file({"a": np.ones((64, 64), np.float32)}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The weights in two files with an index."""
    for name, shard in zip("ab", SHARDS, strict=True):
        save_file({name: np.ones((64, 64), np.float32)}, tmp_path / shard)
    index = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
    (tmp_path / INDEX).write_text(json.dumps(index))
    return tmp_path


def said(folder: Path, load_format: str = "auto") -> str:
    with pytest.raises(ConfigError) as refused:
        check_weights(folder, load_format)
    assert refused.value.param == "model.path"
    assert "\n" not in refused.value.message
    return refused.value.message


def test_whole_weights_are_taken(single: Path) -> None:
    check_weights(single, "auto")


def test_whole_shards_are_taken_whatever_lies_beside_them(sharded: Path) -> None:
    check_weights(sharded, "auto")
    (sharded / "stray.safetensors").write_bytes(b"")
    (sharded / "pytorch_model.bin").write_bytes(b"")
    check_weights(sharded, "auto")


@pytest.mark.parametrize(
    ("keep", "bend", "reason"),
    [
        (40, b"", "invalid header length"),
        (-1000, b"", "not fully covered"),
        (0, b"", "header too small"),
        (0, b"\xff" * 4096, "header too large"),
        (8, b"x" * 16_500, "invalid JSON in header"),
        (0, LFS + b"/spec/v1\noid sha256:0\n", "run `git lfs pull` there"),
    ],
)
def test_a_bent_file_is_named_with_what_is_wrong(
    single: Path, keep: int, bend: bytes, reason: str
) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep] + bend)
    assert f"{file}" in said(single)
    assert reason in said(single)


def test_an_index_that_names_missing_files_is_refused(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    assert f"{INDEX} names {SHARDS[1]}, which is not there (missing: 1 of 2 files)" in said(sharded)


def test_a_dangling_link_of_a_cache_is_a_missing_file(sharded: Path) -> None:
    (sharded / SHARDS[0]).unlink()
    (sharded / SHARDS[0]).symlink_to(sharded / "blob")
    assert f"{SHARDS[0]}, which is not there" in said(sharded)


def test_a_tensor_that_its_file_does_not_have_is_named(sharded: Path) -> None:
    shutil.copy(sharded / SHARDS[0], sharded / SHARDS[1])
    assert f"{SHARDS[1]} is damaged (it has no tensor b, which {INDEX} names)" in said(sharded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {}}'])
def test_an_index_that_says_nothing_is_refused(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_text(text)
    assert f"{INDEX} is damaged" in said(sharded)


def test_without_an_index_the_names_tell_how_many_there_are(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    check_weights(sharded, "auto")
    (sharded / SHARDS[0]).unlink()
    assert f"has no {SHARDS[0]}" in said(sharded)


def test_files_of_torch_must_have_their_end(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    np.savez(tmp_path / "zip.npz", a=np.ones(1000))
    whole = (tmp_path / "zip.npz").read_bytes()
    file.write_bytes(whole)
    check_weights(tmp_path, "auto")
    file.write_bytes(b"\x80\x02an old pickle")
    check_weights(tmp_path, "auto")
    file.write_bytes(whole[:-500])
    assert "its end is missing" in said(tmp_path)
    file.unlink()
    (tmp_path / "training_args.bin").write_bytes(whole)
    assert "has no weights" in said(tmp_path)


def test_a_folder_of_another_format_is_told_apart(single: Path, tmp_path: Path) -> None:
    assert "no weights for load_format = 'pt'; leave it out" in said(single, "pt")
    assert "no weights for load_format = 'mistral'" in said(single, "mistral")
    (single / "model.safetensors").unlink()
    assert "has no weights (*.safetensors or *.bin); fetch" in said(single)
    check_weights(single, "dummy")
    (single / "model-q4.gguf").write_bytes(b"GGUF")
    assert "as GGUF only" in said(single)


@pytest.mark.parametrize(
    ("names", "path", "sentence"),
    [
        (["a.gguf"], "", "as GGUF only"),
        (["a.gguf"], "a.gguf", "as GGUF only"),
        (["a.safetensors"], "a.safetensors", "is a file; name the model's folder"),
        (["params.json"], "", "has no config.json"),
        ([], "none", "name a model's folder"),
    ],
)
def test_what_is_no_model_folder_is_refused(
    tmp_path: Path, names: list[str], path: str, sentence: str
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"^model\.path: ") as refused:
        resolve_model(str(tmp_path / path))
    assert sentence in refused.value.message


def test_a_name_on_the_hub_that_is_not_here_says_how_to_fetch_it() -> None:
    with pytest.raises(ConfigError, match="fetch it first with `hf download nobody/nothing`"):
        resolve_model("nobody/nothing")


def test_the_gateways_files_must_be_there_and_be_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer.json; the gateway reads it"):
        check_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    check_tokenizer(tmp_path)
    for name in ("generation_config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{")
        with pytest.raises(ConfigError, match=f"{name} is damaged"):
            check_tokenizer(tmp_path)
        (tmp_path / name).write_text("{}")
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"tokenizer.json is damaged"):
        check_tokenizer(tmp_path)


def test_overrides_reach_into_configurations_and_replace_other_tables(tmp_path: Path) -> None:
    told = {"text_config": {"heads": 8, "layers": 2}, "rope_parameters": {"a": 1}, "size": 1}
    (tmp_path / "config.json").write_text(json.dumps(told))
    over = {"text_config": {"heads": 4}, "rope_parameters": {"b": 2}, "vision_config": {"c": 3}}
    assert read_model_config(tmp_path, over) == {
        "text_config": {"heads": 4, "layers": 2},
        "rope_parameters": {"b": 2},
        "vision_config": {"c": 3},
        "size": 1,
    }
    assert read_model_config(tmp_path, None) == told
