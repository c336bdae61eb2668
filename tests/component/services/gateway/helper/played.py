"""The helper processes with work of the tests' own: the real forks, limits and words, and no import
of vLLM. What a regex says is what happens."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from pathlib import Path

from common.config import Config
from common.errors import BatonError, Code
from services.gateway.api.bounds import PARAM
from services.gateway.full_api.port import CheckedBody
from services.gateway.helper.jobs import ApiJob, ApiReport, Compiled, GrammarJob, Job, Result
from services.gateway.helper.process import Work, serve

KEPT: list[bytearray] = []


def make(config: Config) -> Work:
    if config.model.name == "unusable":
        raise ValueError("no such tokenizer\nand more")
    return run


def run(job: Job) -> Result:
    if isinstance(job, ApiJob):
        do(job.body.decode().strip())
        return ApiReport(CheckedBody(answer=str(os.getpid()).encode()))
    assert isinstance(job, GrammarJob)
    do(job.structured.source)
    return Compiled()


def do(what: str) -> None:
    name, _, argument = what.partition("#")
    match name:
        case "bad":
            raise BatonError(Code.INVALID_REQUEST, f"{PARAM}: unbalanced (", param=PARAM)
        case "endless":
            for _ in itertools.count():
                pass
        case "stuck":
            time.sleep(60)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "huge":
            bytearray(512 << 20)
        case "keep":
            KEPT.append(bytearray(b"x" * (80 << 20)))
        case "wait":  # until the file is there
            while not Path(argument).exists():
                time.sleep(0.005)


if __name__ == "__main__":
    serve(socket.socket(fileno=0), make)
