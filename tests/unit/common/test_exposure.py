"""Who may be served without a key."""

from __future__ import annotations

import pytest

from common.config import from_mapping
from common.errors import ConfigError


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_loopback_gateway_needs_no_keys(host: str) -> None:
    assert from_mapping({"gateway": {"host": host}}).gateway.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "", "gateway.example", "127.1"])
def test_another_address_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_anonymous = true"):
        from_mapping({"gateway": {"host": host}})
    for word in ({"allow_anonymous": True}, {"keys_file": "/etc/baton/keys.json"}):
        assert from_mapping({"gateway": {"host": host, **word}}).gateway.host == host
