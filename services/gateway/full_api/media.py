"""The parts of a conversation that are not text: which there are, by name, before vLLM reads them.

Images are counted, and everything else is refused. What is in an image is checked where it is
decoded (`vllm/images.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from common.config import RequestLimits
from services.gateway.api.bounds import check_size
from services.gateway.api.parse import refuse
from services.gateway.api.routes import Route
from services.gateway.full_api.shape import CONVERSATION

#: Of a part's `type`, or the field that says it instead.
IMAGES = ("image_url", "input_image", "image")
OTHERS = (
    "image_pil", "image_embeds", "video", "video_url", "input_video", "video_embeds", "audio",
    "audio_url", "input_audio", "audio_embeds", "prompt_embeds", "file", "input_file",
)  # fmt: skip
#: The fields of a message, or of a part, whose elements are parts.
NESTED = ("content", "output")


def count_images(
    route: Route, given: dict[str, Any], limits: RequestLimits, *, takes_images: bool
) -> int:
    """Raises BatonError(UNSUPPORTED_PARAMETER | INVALID_REQUEST) that names the part."""
    name = CONVERSATION.get(route)
    conversation = given.get(name) if name is not None else None
    if name is None or not isinstance(conversation, list):
        return 0
    images = 0
    messages = _messages(name, conversation)
    for path, part in chain.from_iterable(_parts(*message) for message in messages):
        kind = _kind(part)
        if kind in OTHERS:
            refuse(path, f"{path}: parts of type {kind!r} are not supported by this server")
        if kind not in IMAGES:
            continue
        if not takes_images:
            refuse(path, f"{path}: this model takes no images")
        if part.get("uuid") is not None:
            refuse(f"{path}.uuid", f"{path}.uuid: this server names images itself")
        if not _has_source(part):
            refuse(path, f"{path}: an image needs a URL or its data")
        images += 1
        check_size(path, "images", images, limits.images_max, "images_max")
    return images


def _kind(part: dict[str, Any]) -> str:
    """Of a part that has no `type`, vLLM takes the field that it has."""
    kind = part.get("type")
    if isinstance(kind, str):
        return kind
    return next((name for name in (*IMAGES, *OTHERS) if name in part), "")


def _has_source(part: dict[str, Any]) -> bool:
    """vLLM would leave an image out that has none."""
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    return (isinstance(url, str) and url != "") or isinstance(part.get("source"), dict)


def _messages(path: str, conversation: list[Any]) -> Iterator[tuple[str, Any]]:
    """Of a conversation, or of several."""
    for at, element in enumerate(conversation):
        where = f"{path}[{at}]"
        if isinstance(element, list):
            yield from _messages(where, element)
        else:
            yield where, element


def _parts(path: str, holder: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All parts of a message, and those that a part has itself."""
    for name in NESTED if isinstance(holder, dict) else ():
        parts = holder.get(name)
        for at, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict):
                where = f"{path}.{name}[{at}]"
                yield where, part
                yield from _parts(where, part)
