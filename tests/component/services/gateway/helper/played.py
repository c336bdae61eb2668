"""The helper processes with work of the tests' own: the real forks, limits and words, and no import
of vLLM. What a regex says is what happens."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from common.config import Config
from common.errors import BatonError, Code
from services.gateway.api.bounds import PARAM
from services.gateway.full_api.port import CheckedBody
from services.gateway.helper import process
from services.gateway.helper.jobs import (
    AnswerJob,
    ApiJob,
    ApiReport,
    Compiled,
    GrammarJob,
    Job,
    Result,
)
from services.gateway.helper.process import Helper, Work, serve

NEEDS_IMAGES = b"images of these URLs"
URLS = ["http://a/1", "http://a/2"]
#: Numbers that no report can hold, and that nobody can read as one.
STRANGE: dict[bytes, object] = {b"no report": 2**70, b"unreadable": "five"}
ENDS: dict[str, Callable[[], object]] = {
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(1),
    "stuck": signal.pause,
}
KEPT: list[bytearray] = []


def make(config: Config) -> Work:
    if config.model.name == "unusable":
        raise ValueError("no such tokenizer\nand more")
    if config.model.name == "mute":
        Helper.serve = lambda _: None  # type: ignore[method-assign, assignment]
    return run


def run(job: Job) -> Result:
    if isinstance(job, AnswerJob):
        images = [image for prompt in job.checked.prompts or () for image in prompt.images]
        return ApiReport(CheckedBody(answer=f"{len(images)} images".encode()))
    if isinstance(job, ApiJob) and job.body == NEEDS_IMAGES:
        there = b" ".join(job.images.values())
        return ApiReport(CheckedBody(answer=there, missing_images=[] if there else URLS))
    if isinstance(job, ApiJob) and job.body in STRANGE:
        return ApiReport(CheckedBody(tool_calls=STRANGE[job.body]))  # type: ignore[arg-type]
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
            sentence = f"{PARAM}: unbalanced (" + 10_000 * argument
            raise BatonError(Code.INVALID_REQUEST, sentence, param=PARAM + 10_000 * argument)
        case "endless":
            for _ in itertools.count():
                pass
        case "crash" | "killed" | "exit" | "stuck":
            ENDS[name]()
        case "huge":
            bytearray(512 << 20)
        case "keep":
            KEPT.append(bytearray(b"x" * (80 << 20)))
        case "wait":  # until the file is there
            while not Path(argument).exists():
                time.sleep(0.005)


if __name__ == "__main__":
    process.WALL_FACTOR = 100.0  # the machine that runs the tests may be busy
    serve(socket.socket(fileno=0), make)
