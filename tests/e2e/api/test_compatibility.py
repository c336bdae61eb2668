"""The page of routes and fields is what both servers say, and no route of vLLM's is unknown."""

from __future__ import annotations

import pytest

from services.gateway.http.unserved import unserved
from tests.e2e.api import compatibility

pytestmark = pytest.mark.timeout(300)


def test_the_page_is_what_both_servers_say() -> None:
    command = "python -m tests.e2e.api.compatibility > docs/compatibility.md"
    assert compatibility.PAGE.read_text() == compatibility.page(), command


def test_every_route_of_vllms_is_served_or_answers_501() -> None:
    known = compatibility.our_routes() | {row[:2] for row in unserved()}
    assert compatibility.their_routes() - known == set()
