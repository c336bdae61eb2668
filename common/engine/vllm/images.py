"""Images of a prompt, between our wire and vLLM's engine input.

vLLM's own encoder of tensors is used, with its pickles switched off (`prepare_process`). An image
is named by the digest of its tensors. vLLM would name it by a digest of the file, or by whatever id
the client chose for it, with which clients could reach each other's images.
"""

from __future__ import annotations

import hashlib
from typing import Any

from common.engine.port import EngineRequest
from common.errors import BatonError, Code
from common.messages import ImageFeatures

INLINE = 1 << 62
"""vLLM would put larger tensors into further frames."""
DIGEST_BYTES = 16


def images_of(prompt: Any) -> list[ImageFeatures]:
    """The images of a prompt that vLLM has rendered, by their offsets."""
    from vllm.v1.serial_utils import MsgpackEncoder

    if prompt["type"] != "multimodal":
        return []
    encoder, images = MsgpackEncoder(size_threshold=INLINE), []
    for modality, items in prompt["mm_kwargs"].items():
        for item, place in zip(items, prompt["mm_placeholders"][modality], strict=True):
            is_embed = place.is_embed
            images.append(
                ImageFeatures(
                    modality=modality,
                    digest=_digest(item),
                    offset=place.offset,
                    length=place.length,
                    filled=b"" if is_embed is None else bytes(is_embed.tolist()),
                    data=bytes(encoder.encode(item)[0]),
                )
            )
    return sorted(images, key=lambda image: image.offset)


def _digest(item: Any) -> str:
    """Of the tensors alone, since vLLM's item also says where it stood among others."""
    from vllm.v1.serial_utils import MsgpackEncoder

    encoder = MsgpackEncoder(size_threshold=INLINE)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(item):
        digest.update(encoder.encode([name, item[name].data])[0])
    return digest.hexdigest()


def engine_input(ids: list[int], request: EngineRequest) -> Any:
    """vLLM's input of this request, of whose prompt it computes `ids`. Raises
    BatonError(INVALID_REQUEST) for an image that cannot be decoded."""
    from vllm.inputs.engine import mm_input, tokens_input

    if not request.images:
        return tokens_input(ids, cache_salt=request.cache_salt)
    items: dict[str, list[Any]] = {}
    places: dict[str, list[Any]] = {}
    digests: dict[str, list[str]] = {}
    for image in request.images:
        items.setdefault(image.modality, []).append(_item(image))
        places.setdefault(image.modality, []).append(_place(image, len(request.prompt_ids)))
        digests.setdefault(image.modality, []).append(image.digest)
    return mm_input(ids, items, digests, places, cache_salt=request.cache_salt)


def _item(image: ImageFeatures) -> Any:
    import msgspec
    from vllm.multimodal.inputs import MultiModalKwargsItem
    from vllm.v1.serial_utils import MsgpackDecoder

    try:
        return MsgpackDecoder(MultiModalKwargsItem).decode(image.data)
    except (
        msgspec.MsgspecError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RuntimeError,
        NotImplementedError,
        AssertionError,
    ) as error:
        sentence = f"the image at token {image.offset} cannot be decoded ({type(error).__name__})"
        raise BatonError(Code.INVALID_REQUEST, sentence) from error


def _place(image: ImageFeatures, prompt_tokens: int) -> Any:
    import torch
    from vllm.multimodal.inputs import PlaceholderRange

    if image.offset + image.length > prompt_tokens or len(image.filled) not in (0, image.length):
        sentence = f"the image at token {image.offset} is not within its prompt"
        raise BatonError(Code.INVALID_REQUEST, sentence)
    filled = torch.tensor(list(image.filled), dtype=torch.bool) if image.filled else None
    return PlaceholderRange(offset=image.offset, length=image.length, is_embed=filled)
