"""What a helper says of bad images: each is refused by name, and bombs before they unfold."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from common.config import Config, from_mapping
from common.errors import BatonError
from common.model.embedded import ensure_embedded_model
from services.gateway.api.routes import Route
from services.gateway.full_api.port import CheckedBody
from services.gateway.full_api.vllm.build import build_helper
from services.gateway.full_api.vllm.checking import BodyChecker
from tests.rigs.images import Json, data_url, image_part, picture, text_part, user

pytestmark = pytest.mark.timeout(300)

LIMITS = {
    "image_bytes_max": 100_000,
    "image_pixels_max": 40_000,
    "images_max": 3,
    "image_features_mib_max": 1,
}
GOOD = picture(1, 40, 40)


def checker_of(model: Path) -> BodyChecker:
    checker, _ = build_helper(settings(model), model)
    return checker


def settings(model: Path) -> Config:
    about = {"path": str(model), "dtype": "float32"}
    return from_mapping({"model": about, "gateway": {"limits": LIMITS}})


@pytest.fixture(scope="module")
def checker(vision: Path) -> BodyChecker:
    return checker_of(vision)


def checked(
    checker: BodyChecker,
    *parts: Json,
    fetched: dict[str, bytes] | None = None,
    route: Route = Route.CHAT,
    **more: Any,
) -> CheckedBody:
    name = "input" if route is Route.RESPONSES else "messages"
    body = json.dumps({name: user(*parts), **more}).encode()
    return asyncio.run(checker.check(route, body, 2048, fetched or {}))


def refusal(checker: BodyChecker, *parts: Json, **more: Any) -> str:
    with pytest.raises(BatonError) as refused:
        checked(checker, *parts, **more)
    assert refused.value.http.status == 400, refused.value.message
    return refused.value.message


def of_url(url: Any) -> Json:
    return {"type": "image_url", "image_url": {"url": url}}


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """Of these dimensions, whatever follows."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def test_a_good_image_has_its_place_and_a_name_of_its_pixels(checker: BodyChecker) -> None:
    other = picture(2, 40, 40)
    made = [
        checked(checker, text_part("a"), image_part(GOOD), image_part(other)),
        checked(checker, image_part(GOOD)),
    ]
    first, alone = (body.prompts[0] for body in made if body.prompts)
    assert [image.modality for image in first.images] == ["image"] * 2
    assert first.images[0].digest == alone.images[0].digest != first.images[1].digest
    for image in first.images:
        tokens = first.token_ids[image.offset : image.offset + image.length]
        assert len(set(tokens)) == 1, "its place has one token again and again"
    assert b"base64" not in made[0].body, "the conversation stays here"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (data_url(png(201, 200)), "40200 pixels (201 x 200), at most 40000"),
        (data_url(png(1 << 20, 1 << 20)), "too many pixels, at most 40000 (gateway.limits.image"),
        (data_url(bytes(100_001)), "bytes of an image, at most 100000"),
        (data_url(b"no image at all"), "no image of a known kind (PNG, JPEG, WEBP, GIF)"),
        (data_url(b"%PDF-1.7"), "no image of a known kind"),
        (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"), "no image of a known"),
        (data_url(picture(1, 8, 8, "BMP"), "bmp"), "no image of a known kind"),
        (data_url(picture(1, 8, 8, "TIFF"), "tiff"), "no image of a known kind"),
        (data_url(GOOD[:-200]), "damaged"),
        (data_url(png(60, 60, bytes(10))), "damaged"),
        ("data:image/png,%89PNG", "data:image/png;base64"),
        ("data:image/png;base64", "data:image/png;base64"),
        ("data:image/png;base64,@@@@", "not valid base64"),
        ("file:///etc/hostname", "'file:///etc/hostname' is no data:"),
        ("/etc/hostname", "'/etc/hostname' is no data:"),
        ("gopher://a", "is no data:, http: or https: URL"),
    ],
)
def test_a_bad_image_is_refused_by_name(checker: BodyChecker, url: str, sentence: str) -> None:
    assert sentence in refusal(checker, text_part("a"), image_part(GOOD), of_url(url))


@pytest.mark.parametrize("url", [None, "", 7, {}, []])
def test_an_image_without_a_url_is_refused(checker: BodyChecker, url: Any) -> None:
    refusal(checker, text_part("a"), of_url(url))
    refusal(checker, text_part("a"), {"type": "image_url", "image_url": url})


def test_more_images_than_allowed_are_refused_by_name(checker: BodyChecker) -> None:
    sentence = refusal(checker, *[image_part(GOOD)] * 4)
    assert sentence == ("messages[0].content[3]: 4 images, at most 3 (gateway.limits.images_max)")


def test_images_that_are_too_large_once_processed_are_refused(checker: BodyChecker) -> None:
    parts = [image_part(picture(seed, 190, 190, "JPEG")) for seed in range(3)]
    sentence = refusal(checker, *parts)
    assert "MiB of processed images, at most 1 (gateway.limits.image_features_mib_max)" in sentence


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": data_url(GOOD)}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "image_embeds", "image_embeds": "AA"},
        of_url(data_url(GOOD)) | {"uuid": "u"},
    ],
)
def test_other_media_are_refused_by_name(checker: BodyChecker, part: Json) -> None:
    assert refusal(checker, text_part("a"), part).startswith("messages[0].content[1]")


def test_the_processor_takes_no_settings_of_a_client(checker: BodyChecker) -> None:
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        sentence = refusal(checker, image_part(GOOD), **{name: {"image": {"size": 1}}})
        assert sentence == f"{name!r} is not supported by this server"


def test_images_by_url_are_asked_for_first_and_checked_alike(checker: BodyChecker) -> None:
    urls = ["http://a/1", "https://b/2"]
    parts = [of_url(url) for url in urls]
    assert checked(checker, *parts, image_part(GOOD)).missing_images == urls
    contents = dict.fromkeys(urls, GOOD)
    there = checked(checker, *parts, image_part(GOOD), fetched=contents)
    assert there.prompts is not None
    assert len({image.digest for image in there.prompts[0].images}) == 1
    bad = contents | {urls[1]: png(300, 300)}
    assert "90000 pixels" in refusal(checker, *parts, fetched=bad)
    assert "damaged" in refusal(checker, parts[0], of_url(data_url(GOOD[:-200])))


def test_a_model_that_takes_no_images_says_so() -> None:
    plain = checker_of(ensure_embedded_model())
    sentence = "messages[0].content[1]: this model takes no images"
    assert refusal(plain, text_part("a"), image_part(GOOD)) == sentence
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    anthropic = {"type": "image", "source": source}
    assert "takes no images" in refusal(plain, anthropic, route=Route.MESSAGES, max_tokens=1)
    given = {"type": "input_image", "image_url": data_url(GOOD)}
    assert "takes no images" in refusal(plain, given, route=Route.RESPONSES)
