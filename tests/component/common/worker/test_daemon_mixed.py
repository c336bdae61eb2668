"""The shell of a worker that the fleet file gives both roles."""

from __future__ import annotations

from pathlib import Path

from common.config import from_mapping
from common.engine.port import Batch, Output
from common.messages import Ended, Hello, Prefill, PrefillEnded, Role
from tests.component.common.worker.test_daemon import BODY, WELCOME, Bench
from tests.rigs.messages import decode, kv_done, ticket


async def test_it_says_so_and_does_both_at_once(tmp_path: Path) -> None:
    file = {"fleet": {"run_dir": str(tmp_path)}, "decode": {"d0": {"role": "mixed"}}}
    bench = Bench(from_mapping(file))
    await bench.worker.start(bench.tasks)
    hello = await bench.router.next(Hello)
    assert (hello.role, hello.configured_role, hello.role_epoch) == (Role.MIXED, Role.DECODE, 0)
    bench.router.send(WELCOME)
    to = ticket("p", 1, prefill="d0", prefill_incarnation="i", decode="d1")
    bench.router.send(Prefill(request_id="p", attempt=1, ticket=to), BODY)
    bench.router.send(decode(), BODY)
    asked = {await bench.asked(), await bench.asked()}
    assert asked == {"add p#1 [1, 2, 3]", "add r#1 [1, 2, 3]"}
    ends = [Output("r#1", [8], "stop", 8), Output("p#1", [1], "length", 1)]
    bench.engine.batches.put_nowait(Batch(outputs=ends))
    assert (await bench.router.next(Ended)).request_id == "r"
    assert (await bench.router.next(PrefillEnded)).request_id == "p"
    bench.engine.batches.put_nowait(Batch(kv_done=[kv_done("p", 1, side="send")]))
    await bench.worker.stop()
    await bench.tasks.cancel_all()
    bench.router.close()
