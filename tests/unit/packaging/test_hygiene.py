"""House limits that no linter knows (STYLE 6, 8, 10) and hosts and paths that no file may name."""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OURS = ("services", "common", "loadtest", "scripts")
TEXT = {".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".service", ".cfg", ".json", ".sh", ""}
ADAPTERS = (
    "common/engine/vllm_*.py",
    "common/engine/connector*.py",
    "services/gateway/vllm_api/*.py",
)


def python_files(*folders: str) -> Iterator[tuple[str, str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            yield str(path.relative_to(ROOT)), text, ast.parse(text)


def text_files() -> Iterator[tuple[str, str]]:
    """Everything that is ours to commit, except this file, which spells what it forbids."""
    folders = (*OURS, "tests", "constraints", "compose", "systemd", "docs", ".ci")
    inside = (path for folder in folders for path in (ROOT / folder).rglob("*"))
    for path in sorted([*inside, *ROOT.iterdir()]):
        named = path.suffix in TEXT and "__pycache__" not in path.parts
        if path.is_file() and named and path != Path(__file__):
            yield str(path.relative_to(ROOT)), path.read_text()


def offenders(pattern: str) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


@pytest.mark.parametrize(
    ("folders", "lines", "function_lines"),
    [
        (OURS, 400, 70),
        (("tests",), 700, 100),
    ],
)
def test_files_and_functions_are_of_readable_size(
    folders: tuple[str, ...], lines: int, function_lines: int
) -> None:
    long = []
    for name, text, tree in python_files(*folders):
        if text.count("\n") + 1 > lines:
            long.append(f"{name}: {text.count(chr(10)) + 1} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > function_lines:
                    long.append(f"{name}:{node.lineno} {node.name}: {size} lines")
    assert long == []


def test_no_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    assert [name for name, _, _ in python_files(*OURS) if Path(name).name in drawers] == []


def test_no_exception_is_swallowed() -> None:
    silent = [
        f"{name}:{node.lineno}"
        for name, _, tree in python_files(*OURS, "tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"})
        and all(isinstance(statement, ast.Pass) for statement in node.body)
    ]
    assert silent == []


def test_only_the_engine_adapters_import_vllm_or_torch() -> None:
    """import-linter cannot express a file name pattern; it allows all of common.engine."""
    strays = []
    for name, _, tree in python_files(*OURS):
        if any(fnmatch(name, adapter) for adapter in ADAPTERS):
            continue
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                modules.append(node.module or "")
            strays += [f"{name}: {m}" for m in modules if m.split(".")[0] in {"vllm", "torch"}]
    assert strays == []


def test_a_todo_says_why() -> None:
    assert offenders(r"\b(TODO|FIXME|XXX)\b(?!: \w+ \w+)") == []


def test_no_path_of_a_developers_machine() -> None:
    assert offenders(r"(?<![\w.])/(root|work|Users|home/\w+)/") == []


def test_no_package_index_is_named() -> None:
    hosts = r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|pypi\.nvidia\.com|wheels\.vllm\.ai"
    assert offenders(rf"{hosts}|--(extra-)?index-url|--find-links|https?://\S+/simple\b") == []


def test_the_scan_sees_what_it_should() -> None:
    """A scan over nothing passes; these must be among what is read."""
    names = {name for name, _ in text_files()}
    assert {"pyproject.toml", "Makefile", ".ci/run", "LICENSE", "constraints/cpu.txt"} <= names
    assert {"common/model/weights.py", "scripts/install.py"} <= names
    assert offenders(r"^name = \"baton-serve\"$")
