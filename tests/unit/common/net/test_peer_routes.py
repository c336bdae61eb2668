"""An identity stays with the host whose key used it first."""

from __future__ import annotations

import pytest

from common.net import peer_routes
from common.net.peer_routes import PeerRoutes, with_secret


def test_a_routing_id_cannot_be_guessed_and_hides_from_the_daemon() -> None:
    one, other = with_secret(b"d0|1"), with_secret(b"d0|1")
    assert one != other
    routes = PeerRoutes()
    assert routes.accept(one, "a") == b"d0|1"
    assert routes.routing_id(b"d0|1") == one
    assert routes.host_of(b"d0|1") == "a"


@pytest.mark.parametrize("foreign", [b"d0|1", with_secret(b"d0|1")], ids=["bare", "secret"])
def test_another_host_neither_speaks_nor_hears_under_the_identity(foreign: bytes) -> None:
    routes, own = PeerRoutes(), with_secret(b"d0|1")
    routes.accept(own, "a")
    assert routes.accept(foreign, "b") is None
    assert routes.accept(own, "b") is None
    assert routes.routing_id(b"d0|1") == own
    assert routes.host_of(b"d0|1") == "a"


def test_a_peer_that_connects_anew_is_found_where_it_is() -> None:
    routes, newer = PeerRoutes(), with_secret(b"d0|1")
    routes.accept(with_secret(b"d0|1"), "a")
    assert routes.accept(newer, "a") == b"d0|1"
    assert routes.routing_id(b"d0|1") == newer


def test_an_unknown_peer_has_its_own_name_and_no_host() -> None:
    assert PeerRoutes().routing_id(b"x") == b"x"
    assert PeerRoutes().host_of(b"x") == ""


def test_a_full_table_forgets_only_peers_of_the_host_that_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_routes, "PEERS_MAX", 3)
    routes = PeerRoutes()
    routes.accept(b"d0|1#x", "a")
    routes.accept(b"x1#", "b")
    routes.accept(b"x2#", "b")
    assert routes.accept(b"x3#", "b") == b"x3"
    assert routes.host_of(b"x1") == ""
    assert routes.host_of(b"d0|1") == "a"
    assert routes.accept(b"x4#", "c") is None
