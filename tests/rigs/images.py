"""Pictures as tests need them. Nothing is started."""

from __future__ import annotations

import base64
import random
from io import BytesIO
from typing import Any

from PIL import Image

Json = dict[str, Any]


def picture(seed: int, width: int = 60, height: int = 90, kind: str = "PNG") -> bytes:
    """A file: noise, which no two seeds share."""
    noise = random.Random(seed).randbytes(width * height * 3)
    file = BytesIO()
    Image.frombytes("RGB", (width, height), noise).save(file, kind)
    return file.getvalue()


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def image_part(content: bytes) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(content)}}


def text_part(text: str) -> Json:
    return {"type": "text", "text": text}


def user(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": list(parts)}]
