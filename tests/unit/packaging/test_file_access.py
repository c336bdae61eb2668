"""Files are written through `common.process.owned_files`, which judges whose they are.

An AST scan of the daemons and their tools: what makes or writes a file by another way is found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("common", "services")
METHODS = frozenset({
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to",
    "mkfifo", "mknod", "NamedTemporaryFile", "mkstemp",
})  # fmt: skip
WRITING = frozenset("wax+")
FLAGS = frozenset({"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"})
ALLOWED = {
    "common/process/owned_files.py": "the one way",
    "common/model/embedded.py": "a model in a folder of this user's cache that it has just made",
    "common/model/byte_tokenizer.py": "the same",
    "services/install/main.py": "root writes below /etc",
    "services/cli.py": "the null device",
}
"""File to the reason why it may write by itself."""


def writes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name in METHODS:
            yield name
        elif name == "open" and any(_opens_to_write(argument) for argument in _arguments(node)):
            yield "open"


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _opens_to_write(argument: ast.expr) -> bool:
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        mode = argument.value
        return bool(WRITING & set(mode)) and set(mode) <= set("rwaxbt+")
    return any(
        isinstance(node, ast.Attribute) and node.attr in FLAGS for node in ast.walk(argument)
    )


def found() -> dict[str, set[str]]:
    result: dict[str, set[str]] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            names = set(writes(ast.parse(path.read_text(encoding="utf-8"))))
            if names:
                result[str(path.relative_to(ROOT))] = names
    return result


def test_only_files_with_a_reason_write_by_themselves() -> None:
    assert set(found()) == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "path.open('w')",
        "open(path, mode='ab')",
        "path.open('r+b')",
        "path.write_text('')",
        "os.open(path, os.O_CREAT | os.O_RDWR)",
        "os.makedirs(path)",
        "tempfile.NamedTemporaryFile()",
    ],
)
def test_the_scan_sees_each_of_them(source: str) -> None:
    assert list(writes(ast.parse(source)))


@pytest.mark.parametrize("source", ["path.open()", "open(path, 'rb')", "segment.open()"])
def test_the_scan_leaves_readers_alone(source: str) -> None:
    assert not list(writes(ast.parse(source)))
