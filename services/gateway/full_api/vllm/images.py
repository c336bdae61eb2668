"""Where vLLM's renderer gets the images of a request from, in a helper process.

vLLM asks its media connector for each URL. This one knows `data:` URLs and what the gateway has
fetched. It checks size, kind and dimensions before a pixel is decoded.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from contextvars import ContextVar
from io import BytesIO
from typing import Any, NoReturn

import pybase64
from PIL import Image, UnidentifiedImageError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector, MediaWithBytes
from vllm.multimodal.media.image import ImageMediaIO

from common.config import RequestLimits
from common.errors import BatonError, Code
from services.gateway.api.bounds import check_size

CONNECTOR = "baton"
"""Its name, for the variable VLLM_MEDIA_CONNECTOR."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
#: How much of a URL an error repeats.
SHOWN_CHARS = 64

_images: ContextVar[RequestImages] = ContextVar("images")


class RequestImages:
    """The images of one request. `fetched`: contents by URL."""

    def __init__(self, limits: RequestLimits, fetched: Mapping[str, bytes]) -> None:
        self._limits = limits
        self._fetched = fetched
        self._count = 0
        #: URLs that the gateway has yet to fetch.
        self.missing: list[str] = []
        #: What is wrong with the first bad one.
        self.error: BatonError | None = None

    def begin(self) -> None:
        """From now on this task, and those that it starts, have these images."""
        _images.set(self)

    def load(self, url: str, mode: str | None) -> MediaWithBytes[Image.Image]:
        """Raises BatonError(INVALID_REQUEST | UNSUPPORTED_PARAMETER)."""
        try:
            self._count += 1
            most = self._limits.images_max
            check_size("image_url", "images", self._count, most, "images_max")
            content = self._content(url)
            if content is not None:
                self._check(content)
                return _decoded(content, mode)
        except BatonError as error:
            self.error = self.error or error
            raise
        self.missing.append(url)
        raise BatonError(Code.INVALID_REQUEST, "an image is not fetched", param="image_url")

    def _content(self, url: str) -> bytes | None:
        """None: it must be fetched."""
        scheme = url.split(":", 1)[0].lower()
        if scheme == "data":
            return self._inline(url)
        if scheme not in ("http", "https"):
            _refuse(f"{url[:SHOWN_CHARS]!r} is no data:, http: or https: URL")
        return self._fetched.get(url)

    def _inline(self, url: str) -> bytes:
        head, comma, encoded = url.partition(",")
        if not comma or not head.endswith(";base64"):
            _refuse("a data: URL must be like data:image/png;base64,...")
        self._check_bytes(len(encoded) // 4 * 3 - 2)
        try:
            return pybase64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            sentence = "image_url: the data: URL is not valid base64"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="image_url") from error

    def _check(self, content: bytes) -> None:
        """From the head of the file alone."""
        self._check_bytes(len(content))
        most = self._limits.image_pixels_max
        try:
            with Image.open(BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
        except Image.DecompressionBombError:
            _refuse(f"too many pixels, at most {most} (gateway.limits.image_pixels_max)")
        except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
            _refuse(f"this is no image of a known kind ({', '.join(FORMATS)})")
        what = f"pixels ({width} x {height})"
        check_size("image_url", what, width * height, most, "image_pixels_max")

    def _check_bytes(self, size: int) -> None:
        most = self._limits.image_bytes_max
        check_size("image_url", "bytes of an image", size, most, "image_bytes_max")


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class ImageConnector(MediaConnector):
    """What vLLM makes for each request that has media."""

    async def fetch_image_async(
        self, image_url: str, *, image_mode: str | None = "RGB"
    ) -> MediaWithBytes[Image.Image]:
        return _images.get().load(image_url, image_mode)

    async def load_from_url_async(self, url: str, media_io: Any, **_: Any) -> NoReturn:  # noqa: ARG002 - vLLM's signature
        sentence = "only images are supported by this server"
        raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param="messages")


def takes_images(renderer: Any) -> bool:
    """Of the model that it renders for."""
    processor = renderer.mm_processor
    limits = processor.info.allowed_mm_limits if processor is not None else {}
    return any(limits.get(modality, 0) for modality in ("image", "vision_chunk"))


def _decoded(content: bytes, mode: str | None) -> MediaWithBytes[Image.Image]:
    try:
        return ImageMediaIO(image_mode=mode).load_bytes(content)
    except (ValueError, OSError, SyntaxError, EOFError, IndexError) as error:
        sentence = "image_url: the image is damaged and cannot be decoded"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="image_url") from error


def _refuse(what: str) -> NoReturn:
    raise BatonError(Code.INVALID_REQUEST, f"image_url: {what}", param="image_url")
