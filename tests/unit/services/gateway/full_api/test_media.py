"""Parts that are not text are counted or refused by name, wherever the APIs may have them."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import RequestLimits
from common.errors import BatonError, Code
from services.gateway.api.routes import Route
from services.gateway.full_api.media import count_images

LIMITS = RequestLimits(images_max=2)
URL = {"url": "data:image/png;base64,AA"}
IMAGE = {"type": "image_url", "image_url": URL}
ANTHROPIC = {"type": "image", "source": {"type": "base64", "data": "AA"}}
INPUT = {"type": "input_image", "image_url": "data:image/png;base64,AA"}


def told(
    route: Route, messages: Any, *, takes_images: bool = True, limits: RequestLimits = LIMITS
) -> int:
    name = "input" if route is Route.RESPONSES else "messages"
    return count_images(route, {name: messages}, limits, takes_images=takes_images)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("route", "messages"),
    [
        (Route.CHAT, [user("text", {"type": "text", "text": "image_url"}, IMAGE), user(IMAGE)]),
        (Route.CHAT, [user({"image_url": "data:"}, {"type": None, "image_url": URL})]),
        (Route.CHAT, [user({"role": "user", **IMAGE}, IMAGE)]),
        (Route.BATCH, [[user(IMAGE)], [user("text")], [user(IMAGE)]]),
        (Route.MESSAGES, [user({"type": "tool_result", "content": [ANTHROPIC]}, ANTHROPIC)]),
        (Route.RESPONSES, [user(INPUT), {"type": "function_call_output", "output": [INPUT]}]),
        (Route.TOKENIZE, [user(IMAGE, IMAGE)]),
    ],
)
def test_images_are_found_and_counted(route: Route, messages: Any) -> None:
    assert told(route, messages) == 2
    with pytest.raises(BatonError, match=r"2 images, at most 1 \(gateway.limits.images_max\)"):
        told(route, messages, limits=RequestLimits(images_max=1))
    with pytest.raises(BatonError, match=r"\]: this model takes no images") as refused:
        told(route, messages, takes_images=False)
    assert refused.value.code is Code.UNSUPPORTED_PARAMETER


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": URL},
        {"video_url": URL},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "image_embeds", "image_embeds": "AA"},
        {"type": "prompt_embeds", "prompt_embeds": "AA"},
        {"type": "file", "file": {"file_id": "1"}},
    ],
)
def test_other_media_are_refused_by_name(part: dict[str, Any]) -> None:
    kind = next(name for name in part.values() if isinstance(name, str)) if "type" in part else ""
    with pytest.raises(BatonError) as refused:
        told(Route.CHAT, [user("text", IMAGE, part)])
    assert refused.value.param == "messages[0].content[2]"
    assert (kind or "video_url") in refused.value.message
    assert refused.value.http.status == 400


def test_a_client_names_no_image_for_others_to_reach() -> None:
    with pytest.raises(BatonError, match=r"messages\[0\].content\[0\].uuid") as refused:
        told(Route.CHAT, [user(IMAGE | {"uuid": "theirs"})])
    assert refused.value.http.status == 400


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": None},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "input_image", "file_id": "f", "image_url": ""},
        {"type": "input_image", "image_url": ["data:"]},
        {"type": "image", "source": "data:"},
    ],
)
def test_an_image_that_is_nowhere_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(BatonError, match=r"messages\[0\].content\[0\]: an image needs a URL"):
        told(Route.CHAT, [user(part)])


@pytest.mark.parametrize("messages", [None, "text", [{"role": "user", "content": "image_url"}]])
def test_text_has_none(messages: Any) -> None:
    assert told(Route.CHAT, messages, takes_images=False) == 0
    assert count_images(Route.DETOKENIZE, {"tokens": [1]}, LIMITS, takes_images=False) == 0
