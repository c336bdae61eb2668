"""What the supervisor tells of daemons that keep dying."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from common.process.flapping_file import read_flapping, write_flapping


def test_what_was_written_is_read_while_its_writer_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_flapping(tmp_path) == {}
    write_flapping(tmp_path, {"d0": "died 3 times"})
    assert read_flapping(tmp_path) == {"d0": "died 3 times"}
    monkeypatch.setattr("os.getpid", lambda: 1 << 30)
    write_flapping(tmp_path, {"d0": "died 3 times"})
    assert read_flapping(tmp_path) == {}, "nobody has this process id"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", msgspec.json.encode({"pid": "x"})])
def test_what_cannot_be_read_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "up.json").write_bytes(content)
    assert read_flapping(tmp_path) == {}
