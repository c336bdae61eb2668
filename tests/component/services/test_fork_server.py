"""What the process that workers are forked off does when the other end is slow, wrong or gone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from common.process.fork_request import GREETING, PID, REQUEST, UNFIT, Start

LIGHT = (sys.executable, "-m", "tests.component.services.up.light_fork_server")
WAIT_SECONDS = 20.0


class Server:
    """It, and this end of the socket to it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.log = folder / "worker.log"
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(WAIT_SECONDS)
        given = os.environ | {"BATON_SUPERVISOR_PID": str(os.getpid())} | environment
        own, inherited = os.pipe()
        os.set_inheritable(inherited, True)
        with theirs, os.fdopen(own, "rb"), os.fdopen(inherited, "wb"):
            stdin = theirs.fileno()
            self.process = subprocess.Popen(LIGHT, stdin=stdin, env=given, close_fds=False)

    def fork(self, *words: str) -> tuple[psutil.Process, int]:
        """A worker that has not begun, and the pipe at which it waits."""
        start = Start([word.encode() for word in words], dict(os.environb))
        reader, writer = os.pipe()
        with self.log.open("ab") as log, os.fdopen(os.memfd_create("start"), "w+b") as file:
            file.write(msgspec.msgpack.encode(start))
            file.seek(0)
            socket.send_fds(self.line, [REQUEST], [file.fileno(), log.fileno(), reader])
        os.close(reader)
        (pid,) = PID.unpack(self.line.recv(64))
        return psutil.Process(pid), writer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    try:
        assert made.line.recv(64) == GREETING
        yield made
    finally:
        made.line.close()
        assert made.process.wait(WAIT_SECONDS) == 0, "it ends when the other end is closed"


def test_a_worker_that_nobody_answers_for_has_done_nothing(server: Server) -> None:
    worker, pipe = server.fork("tell")
    os.close(pipe)
    worker.wait(WAIT_SECONDS)
    assert server.log.read_bytes() == b""


def test_another_word_does_not_begin_it(server: Server) -> None:
    worker, pipe = server.fork("tell")
    os.write(pipe, b"x")
    worker.wait(WAIT_SECONDS)
    os.close(pipe)
    assert server.log.read_bytes() == b""


def test_the_process_between_is_gone_before_the_answer_comes(server: Server) -> None:
    """Without a subreaper the worker is left to the system's."""
    worker, pipe = server.fork("tell")
    assert worker.ppid() not in (os.getpid(), server.process.pid)
    assert psutil.Process(server.process.pid).children() == []
    os.close(pipe)
    worker.wait(WAIT_SECONDS)


def test_nothing_of_a_request_stays_open_in_it(server: Server) -> None:
    own = psutil.Process(server.process.pid)
    before = own.num_fds()
    for _ in range(3):
        worker, pipe = server.fork("tell")
        os.close(pipe)
        worker.wait(WAIT_SECONDS)
    assert own.num_fds() == before == 3, "nor of what it inherited"


def test_it_does_not_serve_another_than_who_started_it(tmp_path: Path) -> None:
    made = Server(tmp_path, BATON_SUPERVISOR_PID="1")
    with made.line:
        assert made.process.wait(WAIT_SECONDS) == 1
        assert made.line.recv(64) == b""


def test_where_workers_must_not_be_forked_it_says_so_by_its_status(tmp_path: Path) -> None:
    made = Server(tmp_path, UNFIT="1")
    with made.line:
        assert made.process.wait(WAIT_SECONDS) == UNFIT
        assert made.line.recv(64) == b""


def test_it_ends_with_who_started_it_while_it_imports(tmp_path: Path) -> None:
    """Which is when it does not look at the socket."""
    program = (
        "import os, socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "environment = os.environ | {'BATON_SUPERVISOR_PID': str(os.getpid()), 'HANG': '1'}\n"
        "command, pipe = sys.argv[1:], subprocess.PIPE\n"
        "process = subprocess.Popen(command, env=environment, stdin=theirs.fileno(), stdout=pipe)\n"
        "assert process.stdout.readline() == b'importing\\n'\n"
        "print(process.pid, flush=True)\n"
    )
    starter = (sys.executable, "-c", program, *LIGHT)
    done = subprocess.run(starter, capture_output=True, check=True)
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended already
        psutil.Process(int(done.stdout)).wait(WAIT_SECONDS)
