"""Images by URL are fetched between two checks of a body, and an answer is written without any."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import pytest
import structlog

from common.config import RequestLimits, from_mapping
from common.errors import BatonError, Code
from common.messages import ImageFeatures
from services.gateway.api.routes import Route
from services.gateway.full_api.port import ApiRequest, CheckedBody, Origin, RenderedPrompt
from services.gateway.helper.bodies import BodyChecks
from services.gateway.helper.pool import HelperPool
from tests.component.services.gateway.helper.played import NEEDS_IMAGES, URLS

pytestmark = pytest.mark.timeout(60)

COMMAND = [sys.executable, "-m", "tests.component.services.gateway.helper.played"]
ASKED = ApiRequest(Route.CHAT, NEEDS_IMAGES, Origin("r"))


@pytest.fixture
async def pool() -> AsyncIterator[HelperPool]:
    made = HelperPool(from_mapping({}), "light", structlog.get_logger("test"), COMMAND)
    yield made
    made.close()


async def context() -> int:
    return 77


async def test_what_a_body_lacks_is_fetched_and_it_is_checked_again(pool: HelperPool) -> None:
    async def fetch(urls: list[str]) -> dict[str, bytes]:
        assert urls == URLS
        return dict(zip(urls, (b"one", b"two"), strict=True))

    checks = BodyChecks(pool, pool, RequestLimits(), context, fetch)
    checked = await checks.check(ASKED)
    assert (checked.answer, checked.missing_images) == (b"one two", [])


async def test_an_image_that_cannot_be_fetched_ends_the_request(pool: HelperPool) -> None:
    async def fetch(_urls: list[str]) -> dict[str, bytes]:
        raise BatonError(Code.INVALID_REQUEST, "image_url: not from there")

    checks = BodyChecks(pool, pool, RequestLimits(), context, fetch)
    with pytest.raises(BatonError, match="not from there"):
        await checks.check(ASKED)


async def test_who_writes_an_answer_gets_no_images(pool: HelperPool) -> None:
    async def fetch(_urls: list[str]) -> dict[str, bytes]:
        raise AssertionError("nothing is missing")

    image = ImageFeatures(digest="d", offset=0, length=1, data=b"pixels")
    checked = CheckedBody(prompts=[RenderedPrompt([1, 2], images=[image])])
    checks = BodyChecks(pool, pool, RequestLimits(), context, fetch)
    assert await checks.answer(ASKED, checked, {}) == b"0 images"
