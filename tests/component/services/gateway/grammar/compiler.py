"""The compiling process with a compiler of the tests' own: the real forks, limits and words, and
no import of vLLM. What a regex says is what happens."""

from __future__ import annotations

import itertools
import os
import signal
import socket

from common.config import Config
from common.messages import Structured
from services.gateway.grammar.compiler_process import Compile, serve


def make(config: Config) -> Compile:
    if config.model.name == "unusable":
        raise ValueError("no such tokenizer\nand more")
    return run


def run(structured: Structured) -> None:
    match structured.source.split("#")[0]:
        case "bad":
            raise ValueError("unbalanced (\nat 3")
        case "endless":
            for _ in itertools.count():
                pass
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "huge":
            bytearray(512 << 20)


if __name__ == "__main__":
    serve(socket.socket(fileno=0), make)
