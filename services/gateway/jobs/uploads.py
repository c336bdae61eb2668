"""An upload: from the parts of a multipart body to a file on the disk, piece by piece.

A piece of `PIECE_BYTES` is counted against the key's quota before it is written. An upload that
ends badly leaves nothing behind; one whose process dies leaves a file that nobody can ask for, and
which is deleted after an hour.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import BodyPartReader, MultipartReader, web

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.process.owned_files import open_private
from services.gateway.jobs import files
from services.gateway.jobs.batch_work import HOUR_MS
from services.gateway.jobs.ledger import Ledger
from services.gateway.requests.refusals import RETRY_SOON_MS

PIECE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
#: Of one process. Each holds a piece in memory.
UPLOADS_MAX = 16
PARTS_MAX = 16
FIELD_BYTES_MAX = 1_024
PURPOSE, FILE = "purpose", "file"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FIELDS = frozenset({PURPOSE, ANCHOR, SECONDS})
#: OpenAI's bounds of `expires_after[seconds]`.
KEEP_SECONDS_MIN, KEEP_SECONDS_MAX = 3_600, 2_592_000
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(slots=True)
class Upload:
    """One that is under way."""

    file_id: str
    owner: str
    descriptor: int
    size: int = 0


class Uploads:
    def __init__(self, ledger: Ledger, config: GatewayConfig, clock: Clock) -> None:
        self._ledger = ledger
        self._config = config
        self._quota = config.jobs.quota_mib << 20
        #: In which something of an upload must come.
        self._seconds = config.body_ms_max / 1000
        self._size_max = config.jobs.file_mib_max << 20
        self._clock = clock
        self._under_way = 0

    async def take(self, request: web.Request, owner: str) -> str:
        """The id of the whole file. Raises BatonError."""
        if not request.content_type.startswith("multipart/"):
            sentence = "a file is uploaded as multipart/form-data, with `purpose` and `file`"
            raise BatonError(Code.UNSUPPORTED_MEDIA_TYPE, sentence, param="content-type")
        if self._under_way >= UPLOADS_MAX:
            sentence = f"{UPLOADS_MAX} uploads are under way; try again"
            raise BatonError(Code.OVERLOADED, sentence, retry_after_ms=RETRY_SOON_MS)
        self._under_way += 1
        try:
            return await self._parts(request, owner)
        except TimeoutError as error:
            sentence = f"nothing of the file came for {self._seconds:g} s (gateway.body_ms_max)"
            raise BatonError(Code.REQUEST_TIMEOUT, sentence) from error
        except (ValueError, AssertionError) as error:
            sentence = f"the multipart body is damaged: {error}"
            raise BatonError(Code.INVALID_REQUEST, sentence) from error
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise no_room(error) from error
        finally:
            self._under_way -= 1

    async def _parts(self, request: web.Request, owner: str) -> str:
        fields: dict[str, str] = {}
        uploads: list[Upload] = []
        try:
            async for part in self._known_parts(await request.multipart()):
                if part.name != FILE:
                    fields[part.name or ""] = await self._field(part)
                    _check_purpose(fields)
                elif uploads:
                    raise _bad("there are two files", FILE)
                else:
                    uploads.append(await self._begin(part.filename or "file", owner))
                    await self._write(part, uploads[0])
            for name, found in ((FILE, uploads), (PURPOSE, PURPOSE in fields)):
                if not found:
                    raise _bad(f"there is no part `{name}`", name)
            return await self._complete(uploads[0], self._expires(fields), fields[PURPOSE])
        except BaseException:
            for upload in uploads:
                await asyncio.shield(self._give_up(upload))
            raise
        finally:
            for upload in uploads:
                os.close(upload.descriptor)

    async def _known_parts(self, reader: MultipartReader) -> AsyncIterator[BodyPartReader]:
        for _ in range(PARTS_MAX):
            async with asyncio.timeout(self._seconds):
                part = await reader.next()
            if part is None:
                return
            if not isinstance(part, BodyPartReader):
                raise _bad("a part has parts", "part")
            if part.name not in {FILE, *FIELDS}:
                raise _bad(f"a part is called {str(part.name)[:64]!r}", "part")
            yield part

    async def _field(self, part: BodyPartReader) -> str:
        async with asyncio.timeout(self._seconds):
            value = await part.read_chunk(FIELD_BYTES_MAX)
            if await part.read_chunk(FIELD_BYTES_MAX):
                raise _bad(f"it has more than {FIELD_BYTES_MAX} bytes", part.name or "part")
        return value.decode(errors="replace")

    async def _begin(self, name: str, owner: str) -> Upload:
        file_id, now = files.new_id(), self._clock.unix_ms()
        await self._ledger.change(lambda db: files.begin(db, file_id, owner, name, now))
        path = self._ledger.path_of(file_id)
        descriptor = await self._ledger.aside(lambda: open_private(path))
        return Upload(file_id, owner, descriptor)

    async def _write(self, part: BodyPartReader, upload: Upload) -> None:
        piece = bytearray()
        while True:
            async with asyncio.timeout(self._seconds):
                chunk = await part.read_chunk(CHUNK_BYTES)
            piece += chunk
            if piece and (not chunk or len(piece) >= PIECE_BYTES):
                await self._append(upload, bytes(piece))
                piece.clear()
            if not chunk:
                return

    async def _append(self, upload: Upload, piece: bytes) -> None:
        upload.size += len(piece)
        if upload.size > self._size_max:
            sentence = f"a file may have {self._size_max >> 20} MiB (gateway.jobs.file_mib_max)"
            raise BatonError(Code.BODY_TOO_LARGE, sentence, param=FILE)
        now, more = self._clock.unix_ms(), len(piece)
        about = (upload.file_id, upload.owner, more, self._quota, now)
        await self._ledger.change(lambda db: files.grow(db, *about))
        await self._ledger.aside(lambda: _write_all(upload.descriptor, piece))

    async def _complete(self, upload: Upload, expires_ms: int, purpose: str) -> str:
        await self._ledger.aside(lambda: os.fsync(upload.descriptor))
        file_id = upload.file_id
        await self._ledger.change(lambda db: files.complete(db, file_id, purpose, expires_ms))
        return file_id

    async def _give_up(self, upload: Upload) -> None:
        path = self._ledger.path_of(upload.file_id)
        await self._ledger.aside(lambda: path.unlink(missing_ok=True))
        await self._ledger.change(lambda db: files.drop(db, upload.file_id))

    def _expires(self, fields: dict[str, str]) -> int:
        """When the file is deleted, in milliseconds."""
        keep_seconds = self._config.jobs.keep_hours * HOUR_MS // 1000
        if ANCHOR in fields or SECONDS in fields:
            keep_seconds = seconds_to_keep(fields.get(ANCHOR), fields.get(SECONDS, ""))
        return self._clock.unix_ms() + keep_seconds * 1000


def seconds_to_keep(anchor: object, seconds: object) -> int:
    """Of OpenAI's `expires_after`. Raises BatonError(INVALID_REQUEST)."""
    if anchor != "created_at":
        raise _bad('expires_after.anchor must be "created_at"', "expires_after.anchor")
    text = str(seconds)
    known = text.isascii() and text.isdigit() and len(text) < 9
    if not known or not KEEP_SECONDS_MIN <= int(text) <= KEEP_SECONDS_MAX:
        bounds = f"{KEEP_SECONDS_MIN} to {KEEP_SECONDS_MAX}"
        raise _bad(f"expires_after.seconds must be {bounds}", "expires_after.seconds")
    return int(text)


def no_room(error: OSError) -> BatonError:
    """Of a disk that does not take what a client uploads."""
    if error.errno in NO_ROOM:
        sentence = "there is no room for this file on the disk of gateway.jobs.path"
        return BatonError(Code.BODY_TOO_LARGE, sentence, param=FILE)
    return BatonError(Code.INTERNAL, f"the file cannot be written: {error.strerror}")


def _check_purpose(fields: dict[str, str]) -> None:
    purpose = fields.get(PURPOSE, files.BATCH)
    if purpose not in files.PURPOSES:
        raise _bad(f'purpose must be "{files.BATCH}", not {purpose[:64]!r}', PURPOSE)


def _write_all(descriptor: int, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(descriptor, left) :]


def _bad(sentence: str, param: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, sentence, param=param)
