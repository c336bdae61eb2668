"""A daemon's skeleton: one engine, its outputs awaited. Prints `pids HOST CORE`, then events. It
serves one request at the start and one for each line on standard input.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

import psutil

from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.errors import BatonError
from common.messages import Role
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import GREEDY, make_config


def main() -> None:
    engine = open_engine(make_config(Path(sys.argv[1])), Role.DECODE, "d0", "inc-d0")
    (core,) = psutil.Process().children()
    say(f"pids {os.getpid()} {core.pid}")

    async def serve() -> None:
        tasks, numbers = Tasks(), itertools.count()

        def ask() -> None:
            request = EngineRequest(f"r{next(numbers)}", 0, Role.DECODE, [5, 6, 7], GREEDY)
            tasks.start("ask", engine.add(request), ends=True)

        def heard() -> None:
            if os.read(0, 1):
                ask()
            else:
                loop.remove_reader(0)

        loop = asyncio.get_running_loop()
        loop.add_reader(0, heard)
        ask()
        count = 0
        while True:
            try:
                batch = await engine.next_batch()
            except BatonError as error:
                say(f"failed {error.code}")
                break
            count += sum(len(output.token_ids) for output in batch.outputs)
            if count == GREEDY.max_tokens:
                say("served")
                count = 0
        try:
            await engine.add(EngineRequest("later", 0, Role.DECODE, [5], GREEDY))
        except BatonError as error:
            say(f"refused {error.code}")
        await tasks.cancel_all()
        await engine.close()
        say("closed")

    asyncio.run(serve())


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
