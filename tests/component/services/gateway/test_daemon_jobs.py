"""Files and batches at one gateway, whose router and workers say what the test tells them to."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from common.messages import Abort, PriorityClass, Submit
from common.security.api_keys import KeyRecord, edited, new_key
from services.gateway.jobs import leases, lines, uploads
from services.gateway.jobs.routes import ROUTES
from tests.component.services.gateway.rig import MakeRig, Rig, delta, place_on, refuse_with
from tests.rigs.peers import WAIT_SECONDS

URL = "/v1/completions"


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, Any]:
    return {"path": str(tmp_path / "jobs"), "lease_ms": 1000.0}


def form(content: bytes, purpose: str = "batch", name: str = "file") -> aiohttp.FormData:
    data = aiohttp.FormData()
    data.add_field("purpose", purpose)
    data.add_field(name, content, filename="in.jsonl")
    return data


def line(number: int, **body: Any) -> bytes:
    request = {"model": "m", "prompt": f"line {number}", "max_tokens": 2} | body
    return json.dumps({"custom_id": f"id-{number}", "url": URL, "body": request}).encode()


async def started(rig: Rig, count: int, headers: dict[str, str] | None = None) -> str:
    content = b"\n".join(line(number) for number in range(count))
    files, batches = f"{rig.url}/v1/files", f"{rig.url}/v1/batches"
    async with rig.http.post(files, data=form(content), headers=headers) as response:
        assert response.status == 200, await response.text()
        file_id = (await response.json())["id"]
    order = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h"}
    async with rig.http.post(batches, json=order, headers=headers) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["id"])


async def until(rig: Rig, batch: str, status: str, headers: dict[str, str] | None = None) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            url = f"{rig.url}/v1/batches/{batch}"
            async with rig.http.get(url, headers=headers) as response:
                shown = await response.json()
            if shown["status"] == status:
                return shown


async def content(rig: Rig, file_id: str, headers: dict[str, str] | None = None) -> list[Any]:
    async with rig.http.get(f"{rig.url}/v1/files/{file_id}/content", headers=headers) as response:
        assert response.status == 200
        return [json.loads(text) for text in (await response.text()).splitlines()]


async def answer(rig: Rig, count: int) -> list[Submit]:
    """So many lines, in the order in which they come."""
    submits = []
    for _ in range(count):
        submit = await rig.router.next(Submit)
        rig.workers[0].send(delta(submit, 0, "ok", finish_reason="length"))
        submits.append(submit)
    return submits


def counts(jobs: dict[str, Any], status: str) -> tuple[int, int] | None:
    """Completed and failed lines of the batch in this state."""
    rows = in_ledger(jobs, "SELECT completed, failed, status FROM batches")
    return next(((row[0], row[1]) for row in rows if row[2] == status), None)


def in_ledger(jobs: dict[str, Any], select: str) -> list[Any]:
    ledger = sqlite3.connect(Path(jobs["path"]) / "ledger.sqlite")
    try:
        with ledger:
            return ledger.execute(select).fetchall()
    finally:
        ledger.close()


def on_disk(jobs: dict[str, Any]) -> list[Path]:
    return list(Path(jobs["path"]).glob("file-*"))


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_folder_each_route_names_the_setting(
    rig: Rig, method: str, path: str
) -> None:
    response = await rig.http.request(method, rig.url + path.replace("{id}", "x"))
    assert response.status == 501
    assert "[gateway.jobs] path" in (await response.json())["error"]["message"]


async def test_lines_run_as_the_lowest_class_and_are_answered_in_the_order_of_the_file(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.worker()
    batch = await started(rig, 3)
    submits = await answer(rig, 3)
    assert {submit.priority for submit in submits} == {PriorityClass.BATCH}
    shown = await until(rig, batch, "completed")
    found = await content(rig, shown["output_file_id"])
    assert [entry["custom_id"] for entry in found] == ["id-0", "id-1", "id-2"]
    assert {entry["response"]["body"]["choices"][0]["text"] for entry in found} == {"ok"}
    assert shown["usage"]["output_tokens"] == 6


async def test_so_many_lines_wait_at_the_router_and_placing_one_brings_another(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs | {"lines_waiting": 2})
    await rig.ready()
    rig.router.answer = lambda _: None
    await started(rig, 5)
    first = await rig.router.next(Submit)
    await rig.router.next(Submit)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rig.router.next(Submit)
    placed = place_on("d0")(first)
    assert placed is not None
    rig.router.send(placed)
    await rig.router.next(Submit)


async def test_so_many_lines_run_at_once(make_rig: MakeRig, jobs: dict[str, Any]) -> None:
    rig = await make_rig(jobs=jobs | {"lines_at_once": 2})
    worker = await rig.worker()
    await started(rig, 3)
    first = await rig.router.next(Submit)
    await rig.router.next(Submit)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await rig.router.next(Submit)
    worker.send(delta(first, 0, "ok", finish_reason="length"))
    await rig.router.next(Submit)


@pytest.mark.parametrize("code", ["overloaded", "queue_full", "rate_limited"])
async def test_a_refused_line_waits_and_is_tried_again(
    make_rig: MakeRig, jobs: dict[str, Any], code: str
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.worker()
    rig.router.answer = refuse_with(code, 1)
    batch = await started(rig, 1)
    await rig.router.next(Submit)
    rig.router.answer = place_on("d0")
    await answer(rig, 1)
    shown = await until(rig, batch, "completed")
    assert shown["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


@pytest.mark.parametrize(("code", "times"), [("worker_lost", 3), ("request_quarantined", 1)])
async def test_a_failed_attempt_is_repeated_where_that_may_help(
    make_rig: MakeRig, jobs: dict[str, Any], code: str, times: int
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.ready()
    rig.router.answer = refuse_with(code)
    batch = await started(rig, 1)
    shown = await until(rig, batch, "completed")
    assert sum(isinstance(message, Submit) for message in rig.router.drained()) == times
    (entry,) = await content(rig, shown["error_file_id"])
    assert entry["response"]["status_code"] == 500
    assert entry["response"]["body"]["error"]["code"] == code
    assert shown["output_file_id"] is None


async def test_a_gateway_that_stops_gives_its_lines_back_and_another_runs_them(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.worker()
    batch = await started(rig, 2)
    (first,) = await answer(rig, 1)
    await rig.router.next(Submit)
    await rig.stop()
    states = [row[0] for row in in_ledger(jobs, "SELECT state FROM lines ORDER BY state")]
    assert states == [lines.LineState.WAITING, lines.LineState.DONE]
    again = await make_rig(jobs=jobs)
    await again.worker()
    (second,) = await answer(again, 1)
    assert second.request_id != first.request_id
    shown = await until(again, batch, "completed")
    assert len(await content(again, shown["output_file_id"])) == 2


async def test_a_line_of_a_cancelled_batch_is_broken_off(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs | {"lines_waiting": 1})
    worker = await rig.worker()
    batch = await started(rig, 2)
    first = await rig.router.next(Submit)
    second = await rig.router.next(Submit)  # the gateway has heard where the first one is
    async with rig.http.post(f"{rig.url}/v1/batches/{batch}/cancel") as response:
        assert (await response.json())["status"] == "cancelling"
    # The second one may have been placed by now; which of the two goes first is open.
    aborted = (await worker.next(Abort)).request_id
    if aborted != first.request_id:
        assert aborted == second.request_id
        assert (await worker.next(Abort)).request_id == first.request_id
    shown = await until(rig, batch, "cancelled")
    found = await content(rig, shown["error_file_id"])
    assert [entry["error"]["code"] for entry in found] == ["batch_cancelled"] * 2


async def test_the_lines_of_a_revoked_key_end_with_an_error(
    make_rig: MakeRig, jobs: dict[str, Any], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    headers = []
    for _ in range(2):
        key, key_id, sha256 = new_key()
        headers.append({"Authorization": f"Bearer {key}"})
        with edited(keys) as records:
            records.append(KeyRecord(id=key_id, sha256=sha256, tenant="t"))
    rig = await make_rig(jobs=jobs | {"lines_waiting": 1}, keys_file=str(keys))
    worker = await rig.worker()
    rig.router.answer = lambda _: None
    await started(rig, 2, headers[0])
    submit = await rig.router.next(Submit)
    with edited(keys) as records:
        del records[0]
    rig.gateway._reload()
    placed = place_on("d0")(submit)
    assert placed is not None
    rig.router.send(placed)
    worker.send(delta(submit, 0, "ok", finish_reason="length"))
    async with asyncio.timeout(WAIT_SECONDS):
        while counts(jobs, "completed") is None:
            await rig.turn()
    assert counts(jobs, "completed") == (1, 1)


async def test_a_result_that_the_ledger_does_not_take_is_not_lost(
    make_rig: MakeRig, jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig(jobs=jobs | {"lease_ms": 60_000.0})
    await rig.worker()
    batch = await started(rig, 1)
    settle, tries = lines.settle, list[int]()

    def full_once(*about: Any) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise sqlite3.OperationalError("database or disk is full")
        return settle(*about)

    monkeypatch.setattr(lines, "settle", full_once)
    await answer(rig, 1)
    shown = await until(rig, batch, "completed")
    assert len(tries) == 2
    assert len(await content(rig, shown["output_file_id"])) == 1
    assert not any(isinstance(message, Submit) for message in rig.router.drained())


async def test_a_line_that_is_lost_for_the_last_time_ends_its_batch(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.ready()
    rig.router.answer = lambda _: None
    batch = await started(rig, 1)
    await rig.router.next(Submit)
    lost = "UPDATE lines SET held_by = 'dead', held_until_ms = 0, fence = fence + 1, losses = "
    in_ledger(jobs, f"{lost}{leases.LOSSES_MAX - 1}")
    shown = await until(rig, batch, "completed")
    (entry,) = await content(rig, shown["error_file_id"])
    assert entry["error"]["code"] == "line_lost"


# ---------------------------------------------------------------- uploads


def both(form_data: aiohttp.FormData) -> aiohttp.FormData:
    form_data.add_field("file", b"{}", filename="again")
    return form_data


def without_purpose() -> aiohttp.FormData:
    data = aiohttp.FormData()
    data.add_field("file", b"{}", filename="a")
    return data


@pytest.mark.parametrize(
    ("make", "status", "says"),
    [
        (lambda: form(b"{}", "assistants"), 400, 'purpose must be "batch"'),
        (lambda: form(b"{}", "x" * 2000), 400, "more than 1024 bytes"),
        (lambda: form(b"{}", name="other"), 400, "a part is called 'other'"),
        (lambda: both(form(b"{}")), 400, "two files"),
        (without_purpose, 400, "no part `purpose`"),
        (lambda: form(bytes(3 << 20)), 413, "file_mib_max"),
        (lambda: b"{}", 415, "multipart/form-data"),
    ],
)
async def test_an_upload_that_is_none_leaves_nothing(
    make_rig: MakeRig,
    jobs: dict[str, Any],
    make: Callable[[], Any],
    status: int,
    says: str,
) -> None:
    rig = await make_rig(jobs=jobs | {"file_mib_max": 2})
    async with rig.http.post(f"{rig.url}/v1/files", data=make()) as response:
        assert response.status == status
        assert says in (await response.json())["error"]["message"]
    assert nothing_left(jobs)


def nothing_left(jobs: dict[str, Any]) -> bool:
    return not in_ledger(jobs, "SELECT * FROM files") and not on_disk(jobs)


async def test_a_full_disk_refuses_an_upload_and_leaves_nothing(
    make_rig: MakeRig, jobs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(uploads, "_write_all", full)
    rig = await make_rig(jobs=jobs)
    async with rig.http.post(f"{rig.url}/v1/files", data=form(b"{}")) as response:
        assert response.status == 413
        assert "no room" in (await response.json())["error"]["message"]
    assert nothing_left(jobs)


async def test_a_client_that_leaves_leaves_nothing(make_rig: MakeRig, jobs: dict[str, Any]) -> None:
    rig = await make_rig(jobs=jobs)
    _, writer = await asyncio.open_connection("127.0.0.1", rig.gateway.http_address[1])
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
        b"Content-Type: multipart/form-data; boundary=B\r\n\r\n"
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    )
    writer.write(head + bytes(3 << 20))
    await writer.drain()
    async with asyncio.timeout(WAIT_SECONDS):
        while not on_disk(jobs):
            await rig.turn()
    writer.transport.abort()
    async with asyncio.timeout(WAIT_SECONDS):
        while not nothing_left(jobs):
            await rig.turn()


async def test_a_file_may_be_larger_than_a_body(make_rig: MakeRig, jobs: dict[str, Any]) -> None:
    rig = await make_rig(jobs=jobs, body_bytes_max=1 << 20)
    text = b"a" * ((5 << 20) + 7)
    async with rig.http.post(f"{rig.url}/v1/files", data=form(text)) as response:
        file = await response.json()
    assert file["bytes"] == len(text)
    async with rig.http.get(f"{rig.url}/v1/files/{file['id']}/content") as response:
        assert await response.read() == text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "337h"}, "completion_window"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "expires_after.anchor"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 3599}},
            "expires_after.seconds",
        ),
        ({"input_file_id": "file-0"}, "file_id"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused_by_name(
    make_rig: MakeRig, jobs: dict[str, Any], change: dict[str, Any], param: str
) -> None:
    rig = await make_rig(jobs=jobs)
    order = {"input_file_id": "file-1", "endpoint": URL, "completion_window": "1h"} | change
    async with rig.http.post(f"{rig.url}/v1/batches", json=order) as response:
        assert response.status in (400, 404)
        assert (await response.json())["error"]["param"] == param
