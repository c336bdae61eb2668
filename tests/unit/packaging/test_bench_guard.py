"""The regression guard shouts at a fall, and at nothing else."""

import pytest

from tests.bench.guard import committed, show


def test_a_fall_is_shouted(capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"router": 0.1, "gateway": 0.8, "kv": 0.5}
    assert show({"router": 0.084, "gateway": 0.7, "kv": 0.9, "new": 1.0}, kept) == ["router"]
    out = capsys.readouterr().out
    assert "!!! ROUTER FELL BY 16%" in out
    assert out.count("!!!") == 2


def test_there_is_something_to_compare_with() -> None:
    assert set(committed()) == {"router", "gateway", "kv"}
