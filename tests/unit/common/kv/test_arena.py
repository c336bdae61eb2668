"""P's staging memory in D's hands: the same bytes, read-only, and only for who may have it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from common.kv.arena import Arena, Bytes, borrow, shares_memory

SIZE = 1 << 20


async def borrowed(name: str) -> Bytes | None:
    got: asyncio.Future[Bytes | None] = asyncio.get_running_loop().create_future()
    borrow(name, got.set_result)
    return await asyncio.wait_for(got, 5.0)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_what_p_writes_d_reads_and_nobody_but_p_writes() -> None:
    async def play() -> None:
        arena = Arena(SIZE)
        arena.open()
        mine = await borrowed(arena.name)
        also = await borrowed(arena.name)
        assert mine is not None
        assert also is not None
        assert mine.nbytes == SIZE
        arena.memory[4096] = 7
        assert (mine[4096], also[4096]) == (7, 7)
        with pytest.raises(ValueError, match="read-only"):
            mine[0] = 1
        arena.close()
        assert await borrowed(arena.name) is None
        arena.memory[4097] = 9
        assert mine[4097] == 9, "who has it keeps it"

    asyncio.run(play())


def test_pages_come_with_use_and_all_ends_with_its_owner() -> None:
    async def play() -> None:
        before = open_files()
        arena = Arena(1 << 40)
        arena.open()
        mine = await borrowed(arena.name)
        assert mine is not None
        arena.memory[-1] = 3
        assert mine[-1] == 3
        arena.close()
        arena.close()
        del arena, mine
        assert open_files() == before

    asyncio.run(play())


def answering(answer: Callable[[socket.socket], object]) -> Bytes | None:
    """What a borrower makes of whoever answers so."""

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


def test_nobody_there_and_nobody_answering_mean_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.kv.arena.BORROW_S", 0.05)
    assert asyncio.run(borrowed("baton-kv-nobody")) is None
    assert asyncio.run(borrowed("x" * 200)) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        name = f"baton-test-{os.urandom(8).hex()}"
        mute.bind("\0" + name)
        mute.listen()
        assert asyncio.run(borrowed(name)) is None


def test_who_gives_up_hears_nothing() -> None:
    async def play() -> None:
        arena = Arena(SIZE)
        arena.open()
        heard: list[Bytes | None] = []
        before = open_files()
        borrow(arena.name, heard.append)()
        borrow("baton-kv-nobody", heard.append)()
        assert open_files() == before
        assert await borrowed(arena.name) is not None
        assert heard == []
        arena.close()

    asyncio.run(play())


def test_another_user_is_handed_nothing() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")

    async def play() -> bytes:
        arena = Arena(SIZE)
        arena.open()
        process = await asyncio.create_subprocess_exec(
            "python3",
            "-c",
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
            "s.connect('\\0' + sys.argv[1]);"
            "print(len(socket.recv_fds(s, 1, 1)[1]))",
            arena.name,
            stdout=asyncio.subprocess.PIPE,
        )
        told, _ = await process.communicate()
        arena.close()
        return told

    assert asyncio.run(play()).strip() == b"0"


@pytest.mark.parametrize(
    ("transports", "expected"),
    [("tcp,sm,self", True), ("posix", True), ("all", True), ("tcp,self", False), ("rc,tcp", False)],
)
def test_the_transports_allow_it_or_not(transports: str, expected: bool) -> None:
    assert shares_memory(transports) is expected
