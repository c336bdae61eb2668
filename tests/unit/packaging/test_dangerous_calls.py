"""No way from bytes to code: what could execute, import or unpickle what a peer sent is not called.

An AST scan of all that is shipped, beside ruff's own rules, which a `noqa` can switch off.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHIPPED = ("services", "common", "loadtest", "scripts")
MODULES = frozenset({
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "yaml",
    "code", "codeop", "runpy", "imp", "pty", "telnetlib", "xmlrpc", "dbm",
})  # fmt: skip
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = frozenset({
    "os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.execl", "os.spawnv",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "builtins.eval", "builtins.exec", "yaml.load", "yaml.unsafe_load", "pickle.loads",
    "importlib.import_module", "torch.load", "numpy.load", "np.load", "tempfile.mktemp",
    "ssl._create_unverified_context",
})  # fmt: skip
METHODS = frozenset({"recv_pyobj", "send_pyobj", "loads_pickle"})
ALLOWED: dict[str, str] = {}
"""`file: call` to the reason why it may stand there."""


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def dangers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"import {n.name}" for n in names if n.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                if module.split(".")[0] in MODULES:
                    yield f"import {module}"
                yield from (
                    f"import {module}.{n.name}" for n in names if f"{module}.{n.name}" in CALLS
                )
            case ast.Call(func=func, keywords=keywords):
                yield from _call(dotted(func), func, keywords)


def _call(name: str, func: ast.expr, keywords: list[ast.keyword]) -> Iterator[str]:
    if name in BUILTINS | CALLS:
        yield f"{name}()"
    if isinstance(func, ast.Attribute) and func.attr in METHODS:
        yield f"{func.attr}()"
    for keyword in keywords:
        off = isinstance(keyword.value, ast.Constant) and keyword.value.value in (False, None)
        if keyword.arg == "shell" and not off:
            yield f"{name}(shell=...)"
        if keyword.arg in ("allow_pickle", "trust_remote_code") and not off:
            yield f"{name}({keyword.arg}=...)"
        if keyword.arg == "verify" and off:
            yield f"{name}(verify=False)"


def test_nothing_that_ships_can_turn_bytes_into_code() -> None:
    files = [path for folder in SHIPPED for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 200, "a scan over nothing passes"
    found = [
        f"{path.relative_to(ROOT)}: {danger}"
        for path in files
        for danger in dangers(ast.parse(path.read_text()))
    ]
    assert [each for each in found if each not in ALLOWED] == []
    assert sorted(ALLOWED.keys() - set(found)) == [], "exceptions that nothing needs any more"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os\nos.system('x')",
        "from os import system",
        "eval('1')",
        "exec(frame)",
        "__import__(name)",
        "import subprocess\nsubprocess.run(c, shell=True)",
        "subprocess.Popen(c, shell=flag)",
        "import yaml\nyaml.load(f)",
        "import marshal",
        "socket.recv_pyobj()",
        "numpy.load(f)",
        "AutoModel.from_pretrained(m, trust_remote_code=True)",
        "importlib.import_module(message.kind)",
        "asyncio.create_subprocess_shell(c)",
    ],
)
def test_the_scan_sees_each_of_them(source: str) -> None:
    assert list(dangers(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["subprocess.run(c, shell=False)", "re.compile(p)", "ast.literal_eval(x)", "f.eval()"]
)
def test_the_scan_leaves_the_harmless_alone(source: str) -> None:
    assert not list(dangers(ast.parse(source)))
