"""A plain vLLM engine, without any code of ours, in a fork of this process: what it answers is what
the pair must answer. A fork costs seconds where a process would import vLLM first."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tests.e2e.reference import answer

SECONDS = 280


def judge(question: dict[str, Any]) -> dict[str, Any]:
    """What `tests.e2e.reference.answer` returns, or {"error": SENTENCE} if the engine failed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer_in_fork, args=(question, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(SECONDS):
            return {"error": f"the plain engine did not answer within {SECONDS} s"}
        told: dict[str, Any] = json.loads(ours.recv_bytes())
    except EOFError:
        return {"error": "the plain engine's process died"}
    finally:
        process.kill()
        process.join()
        ours.close()
    return told


def _answer_in_fork(question: dict[str, Any], out: Connection) -> None:
    try:
        told = answer(question)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        useful = [line for line in lines if not line.startswith(("For further", "1 validation"))]
        told = {"error": (useful or [repr(error)])[0].split(" [type=")[0]}
    out.send_bytes(json.dumps(told).encode())
    out.close()
    os._exit(0)
