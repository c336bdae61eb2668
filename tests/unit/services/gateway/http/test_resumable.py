"""Whether a body wants a stream is asked before it is checked, so of any bytes."""

from __future__ import annotations

import pytest

from services.gateway.http.resumable import wants_stream


@pytest.mark.parametrize(
    ("body", "wants"),
    [
        (b'{"stream": true}', True),
        (b'{"stream": false}', False),
        (b"{}", False),
        (b"no JSON", True),
        (b'{"stream": "yes"}', True),
        (b'{"a":' * 5_000, True),
        (b'{"stream": "\xff"}', True),
    ],
)
def test_any_body_may_be_asked(body: bytes, wants: bool) -> None:
    assert wants_stream(body) is wants
