"""The documents lead somewhere: their relative links, and the paths and names that they mention."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.net import admin_verbs
from services.ctl.verb import verb_of
from services.router.admin.verb import View, checked
from tests.unit.services.router.rig import standard

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"(?<![\w./-])((?:services|common|loadtest|tests)/[\w./*-]*\w)")
NAME_IN_FILE = re.compile(r"`([\w.]+)` in\s+`([\w./]+\.py)`")


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def found(pattern: re.Pattern[str]) -> Iterator[tuple[Path, re.Match[str]]]:
    for document in documents():
        for match in pattern.finditer(document.read_text()):
            yield document, match


def test_every_relative_link_leads_to_a_file() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {match[1]}"
        for document, match in found(LINK)
        if "://" not in match[1] and not (document.parent / match[1]).exists()
    ]
    assert broken == []


def test_every_path_that_is_named_exists() -> None:
    missing = [
        f"{document.relative_to(ROOT)}: {match[1]}"
        for document, match in found(PATH)
        if not any(ROOT.glob(match[1]))
    ]
    assert missing == []


def test_a_name_that_is_said_to_be_in_a_file_is_there() -> None:
    missing = [
        f"{document.relative_to(ROOT)}: {match[1]} in {match[2]}"
        for document, match in found(NAME_IN_FILE)
        for name in match[1].split(".")
        if not re.search(rf"\b{name}\b", (ROOT / match[2]).read_text())
    ]
    assert missing == []


def test_the_example_of_an_admin_verb_runs_as_it_stands() -> None:
    page = (ROOT / "docs/howto/admin-verb.md").read_text()
    code, declaration = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "waits.py", "exec"), names)  # noqa: S102 - our own page
    (waits,) = eval(f"({declaration.strip()})", vars(admin_verbs))  # noqa: S307 - the same
    rig = standard(max_active=8)
    for request_id in ("placed", "waits", "waits too"):
        rig.submit(request_id, prompt=900, out=90)
    rows = names["run"](View(rig.core.shared, rig.now, {}), checked(waits, {"limit": 5}))
    assert rows == [{"requests": 1, "reason": "free KV blocks on a decode worker"}]
    assert verb_of(waits).render(rows).startswith("REQUESTS  REASON\n       1  free KV")


def test_the_scan_sees_what_it_should() -> None:
    assert {"README.md", "architecture.md", "glossary.md"} <= {path.name for path in documents()}
    assert "decisions/README.md" in {match[1] for _, match in found(LINK)}
    assert "common/net/endpoints.py" in {match[1] for _, match in found(PATH)}
    assert "place" in {match[1] for _, match in found(NAME_IN_FILE)}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
