"""House limits that no linter knows (STYLE 6, 8, 10, 22 to 25); names that no file may contain."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OURS = ("services", "common", "loadtest", "scripts")
TEXT = {".py", ".toml", ".txt", ".md", ".yaml", ".yml", ".service", ".cfg", ".json", ".sh", ""}


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


LATE = (
    "llvmlite",
    "ucxx",
    "common.kv.checksum.codegen",
    "common.kv.checksum.tilegen",
    "common.kv.checksum.vectorgen",
)
"""No module may load these while tests are collected: engines are forked after that."""


def early_imports(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_collecting_tests_loads_nothing_that_a_fork_must_not_meet() -> None:
    early = [
        f"{name}: {module}"
        for name, _, tree in python_files("tests", "common", "services", "loadtest")
        for module in early_imports(tree)
        if module.startswith(LATE) and name.removesuffix(".py").replace("/", ".") not in LATE
    ]
    assert early == []


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


PACKAGES = ("services", "common", "loadtest")
ENTRIES_MAX = 18
DOCUMENTED_ELSEWHERE = frozenset({"services/router/records/rows.py"})
"""Files whose docstrings still name something else than a field or a parameter."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {argument.arg for argument in named if argument is not None}


def members(node: ast.ClassDef) -> set[str]:
    """Fields, attributes that methods set, methods, enum values, parameters of `__init__`."""
    names = set()
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets, value=value):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
                names |= {str(value.value)} if isinstance(value, ast.Constant) else set()
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(statement.name)
                names |= parameters(statement) if statement.name == "__init__" else set()
                names |= {
                    inner.attr
                    for inner in ast.walk(statement)
                    if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
                }
    return names


def undocumentable(tree: ast.Module) -> Iterator[str]:
    """Names that a docstring describes (`` `name`: ``) and that its class or function lacks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            known = members(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known = parameters(node)
        else:
            continue
        for name in re.findall(r"`(\w+)`:", ast.get_docstring(node) or ""):
            if name not in known:
                yield f"{node.lineno} {node.name}: `{name}`"


def test_a_documented_name_exists() -> None:
    wrong = {
        name: found
        for name, _, tree in python_files(*PACKAGES)
        if (found := list(undocumentable(tree)))
    }
    assert {name: wrong[name] for name in wrong.keys() - DOCUMENTED_ELSEWHERE} == {}


def test_a_docstring_that_names_nothing_is_found() -> None:
    source = 'class A:\n    """`one`: is there. `two`: is not."""\n\n    one: int\n'
    assert list(undocumentable(ast.parse(source))) == ["1 A: `two`"]


def test_tests_are_named_after_modules() -> None:
    """`test_` and the name of a module, of a package, or of the folder, and perhaps more words.
    What lies in a folder `packaging` is about the repository."""
    tests = ROOT / "tests"
    strange = set()
    for path in [*tests.glob("unit/**/test_*.py"), *tests.glob("component/**/test_*.py")]:
        folder = ROOT.joinpath(*path.parent.relative_to(tests).parts[1:])
        named = {entry.stem for entry in folder.glob("[!_]*")} | {folder.name}
        about = path.stem.removeprefix("test_") + "_"
        if folder.name != "packaging" and not any(about.startswith(f"{n}_") for n in named):
            strange.add(str(path.relative_to(ROOT)))
    assert strange == set()


def packages() -> list[Path]:
    return [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]


def test_no_folder_is_crowded() -> None:
    for folder in packages():
        entries = [
            entry.name
            for entry in folder.iterdir()
            if entry.name != "__init__.py"
            and (entry.is_file() or any("__pycache__" not in p.parts for p in entry.rglob("*.*")))
        ]
        assert len(entries) <= ENTRIES_MAX, f"{folder.relative_to(ROOT)}: {sorted(entries)}"


def test_a_package_says_what_lives_in_it() -> None:
    silent = [
        str(folder.relative_to(ROOT))
        for folder in packages()
        if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


def test_a_variable_has_the_name_of_its_object() -> None:
    called_each = [
        f"{name}:{node.lineno}"
        for name, _, tree in python_files(*PACKAGES)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "each" and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.arg) and node.arg == "each")
    ]
    assert called_each == []
