"""What is found wrong before anything is started: the tests that start something."""

from __future__ import annotations

import socket

import pytest

from common.errors import ConfigError
from services.up import preflight


def test_a_taken_port_is_named_and_a_free_one_passes() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*--port"):
            preflight.check_port("127.0.0.1", port, "--port")
    preflight.check_port("127.0.0.1", port, "--port")
