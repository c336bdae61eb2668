"""P's staging memory, mapped by D: the same bytes, read-only, and only for the same user."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from common.kv.staging.shared_segment import Bytes, SharedSegment, map_remote_segment, shares_memory

SIZE = 1 << 20


async def borrowed(name: str) -> Bytes | None:
    got: asyncio.Future[Bytes | None] = asyncio.get_running_loop().create_future()
    map_remote_segment(name, got.set_result)
    return await asyncio.wait_for(got, 5.0)


def open_files() -> int:
    """Of this process, without those that are closed as soon as earlier tests' garbage is found."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_p_writes_d_reads_and_d_cannot_write() -> None:
    async def play() -> None:
        segment = SharedSegment(SIZE)
        segment.open()
        mine = await borrowed(segment.name)
        also = await borrowed(segment.name)
        assert mine is not None
        assert also is not None
        assert mine.nbytes == SIZE
        segment.memory[4096] = 7
        assert (mine[4096], also[4096]) == (7, 7)
        with pytest.raises(ValueError, match="read-only"):
            mine[0] = 1
        segment.close()
        assert await borrowed(segment.name) is None
        segment.memory[4097] = 9
        assert mine[4097] == 9, "who has it keeps it"

    asyncio.run(play())


def test_pages_come_with_use_and_all_ends_with_its_owner() -> None:
    async def play() -> None:
        before = open_files()
        segment = SharedSegment(1 << 40)
        segment.open()
        mine = await borrowed(segment.name)
        assert mine is not None
        segment.memory[-1] = 3
        assert mine[-1] == 3
        segment.close()
        segment.close()
        del segment, mine
        assert open_files() == before

    asyncio.run(play())


def answering(answer: Callable[[socket.socket], object]) -> Bytes | None:
    """What mapping makes of a server that answers so."""

    async def play() -> Bytes | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            name = f"baton-test-{os.urandom(8).hex()}"
            listener.bind("\0" + name)
            listener.listen()
            loop = asyncio.get_running_loop()

            def accept() -> None:
                caller, _ = listener.accept()
                with caller:
                    answer(caller)

            loop.add_reader(listener, accept)
            try:
                return await borrowed(name)
            finally:
                loop.remove_reader(listener)

    return asyncio.run(play())


def handing(seals: int) -> Callable[[socket.socket], object]:
    def answer(caller: socket.socket) -> None:
        file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, SIZE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        socket.send_fds(caller, [b"k"], [file])
        os.close(file)

    return answer


def test_a_file_that_could_shrink_under_the_reader_is_not_taken() -> None:
    whole = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    assert answering(handing(whole)) is not None
    before = open_files()
    assert answering(handing(fcntl.F_SEAL_GROW)) is None
    assert answering(lambda caller: caller.send(b"k")) is None
    assert answering(lambda _: None) is None
    assert open_files() == before


def test_no_server_and_no_answer_mean_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.kv.staging.shared_segment.MAP_SEGMENT_S", 0.05)
    assert asyncio.run(borrowed("baton-kv-nobody")) is None
    assert asyncio.run(borrowed("x" * 200)) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        name = f"baton-test-{os.urandom(8).hex()}"
        mute.bind("\0" + name)
        mute.listen()
        assert asyncio.run(borrowed(name)) is None


def test_a_cancelled_mapping_calls_nobody_back() -> None:
    async def play() -> None:
        segment = SharedSegment(SIZE)
        segment.open()
        calls: list[Bytes | None] = []
        before = open_files()
        map_remote_segment(segment.name, calls.append)()
        map_remote_segment("baton-kv-nobody", calls.append)()
        assert open_files() == before
        assert await borrowed(segment.name) is not None
        assert calls == []
        segment.close()

    asyncio.run(play())


def test_another_user_is_handed_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")

    async def play() -> bytes:
        segment = SharedSegment(SIZE)
        segment.open()
        process = await asyncio.create_subprocess_exec(
            "python3",
            "-c",
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
            "s.connect('\\0' + sys.argv[1]);"
            "print(len(socket.recv_fds(s, 1, 1)[1]))",
            segment.name,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        segment.close()
        return output

    assert asyncio.run(play()).strip() == b"0"


@pytest.mark.parametrize(
    ("transports", "expected"),
    [("tcp,sm,self", True), ("posix", True), ("all", True), ("tcp,self", False), ("rc,tcp", False)],
)
def test_the_transports_allow_it_or_not(transports: str, expected: bool) -> None:
    assert shares_memory(transports) is expected
