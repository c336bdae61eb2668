"""The key file on disk: the tests that start something."""

from __future__ import annotations

import threading
from pathlib import Path

from common.security.api_keys import read_keys
from tests.unit.common.security.test_api_keys import add


def test_editors_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    threads = [threading.Thread(target=add, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_keys(path).keys) == 8
