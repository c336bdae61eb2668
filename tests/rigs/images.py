"""Pictures as tests need them. Nothing is started."""

from __future__ import annotations

import base64
import random
from io import BytesIO
from typing import Any

from PIL import Image

Json = dict[str, Any]
KINDS = ("PNG", "JPEG", "WEBP", "GIF")


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


def chats(count: int) -> list[list[Json]]:
    """One to three pictures of many sizes, with text before, between and behind, so that they
    begin and end anywhere in a block of 32. Every fifth repeats pictures of the one before."""
    draw, made = random.Random(7), list[list[Json]]()
    for seed in range(count):
        parts: list[Json] = []
        for nth in range(draw.randint(1, 3)):
            drawn = 100 * (seed - 1 if seed and seed % 5 == 0 else seed) + nth
            looks = random.Random(drawn)
            width, height = looks.randint(20, 260), looks.randint(20, 260)
            content = picture(drawn, width, height, looks.choice(KINDS))
            parts += [text_part("look: " * draw.randint(0, 12) + "x"), image_part(content)]
        made.append(user(*parts, text_part("y" * draw.randint(1, 90))))
    return made
