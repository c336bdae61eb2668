"""Files and batches as the official client uses them, on a fleet whose daemons are killed."""

from __future__ import annotations

import json
import random
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rigs.batches import (
    CHAT,
    COMPLETIONS,
    chat_line,
    client,
    entries,
    faults,
    ids_line,
    is_up,
    jsonl,
    kill,
    over,
    started,
    until,
    until_done,
)
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key
from tests.rigs.responses import answered, asked, deltas, listed, resumed

SIM = ("--engine", "sim", "--prefill", "1", "--decode", "2", "--gateways", "2")
FAST = {
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "5",
    "BATON_GATEWAY__JOBS__LEASE_MS": "1000",
    "BATON_GATEWAY__JOBS__QUOTA_MIB": "12",
    "BATON_GATEWAY__ROUTER_WAIT_MS": "1000",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    path = tmp_path_factory.mktemp("jobs") / "jobs"
    with fleet(*SIM, env=FAST | {"BATON_GATEWAY__JOBS__PATH": str(path)}) as running:
        yield running.wait_ready()


def folder(running: Fleet) -> Path:
    daemon = running.children()["g0"]
    return Path(daemon.environ()["BATON_GATEWAY__JOBS__PATH"])


def test_the_official_client_makes_follows_and_reads_a_batch(jobs: Fleet) -> None:
    with client(jobs) as api:
        lines = [chat_line(number, max_tokens=4) for number in range(20)]
        batch = started(api, jsonl(lines), metadata={"for": "the test"})
        done = over(api, batch.id)
        assert (done.status, done.errors, done.error_file_id) == ("completed", None, None)
        assert done.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
        assert done.metadata == {"for": "the test"}
        found = entries(api, done.output_file_id)
        assert [entry["custom_id"] for entry in found] == [one["custom_id"] for one in lines]
        body = found[7]["response"]["body"]
        chat = api.chat.completions.create(**lines[7]["body"])
        assert body["choices"][0]["message"]["content"] == chat.choices[0].message.content
        assert done.usage.output_tokens == 80
        assert batch.id in {one.id for one in api.batches.list(limit=2)}
        listed = [file.id for file in api.files.list(purpose="batch_output")]
        assert done.output_file_id in listed
        for path in folder(jobs).iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert api.files.delete(done.output_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            api.files.content(done.output_file_id)
        assert not (folder(jobs) / done.output_file_id).exists()


def test_a_bad_line_is_an_entry_of_the_error_file_and_the_others_run(jobs: Fleet) -> None:
    lines = [
        json.dumps(chat_line(1, max_tokens=2)),
        "{ this is no JSON",
        json.dumps(chat_line(2) | {"url": "/v1/embeddings"}),
        json.dumps(chat_line(3, model="another")),
        json.dumps(chat_line(4, stream=True)),
        "",
        json.dumps(chat_line(1)),
        json.dumps(chat_line(5, max_tokens=-1)),
        json.dumps(chat_line(6, max_tokens=2)),
    ]
    with client(jobs) as api:
        done = over(api, started(api, "\n".join(lines).encode()).id)
        assert done.status == "completed"
        assert done.request_counts.model_dump() == {"total": 8, "completed": 2, "failed": 6}
        good, bad = entries(api, done.output_file_id), entries(api, done.error_file_id)
    assert [entry["custom_id"] for entry in good] == ["id-1", "id-6"]
    assert [entry["custom_id"] for entry in bad] == [None, "id-2", "id-3", "id-4", "id-1", "id-5"]
    assert "line 2" in bad[0]["error"]["message"]
    assert "/v1/embeddings" in bad[1]["error"]["message"]
    assert bad[2]["response"]["status_code"] == 404
    assert bad[2]["response"]["body"]["error"]["code"] == "model_not_found"
    assert "stream" in bad[3]["error"]["message"]
    assert "line 1 has the same custom_id" in bad[4]["error"]["message"]
    assert bad[5]["response"]["status_code"] == 400


def test_what_cannot_be_uploaded_or_run_is_one_clear_error(jobs: Fleet) -> None:
    with client(jobs) as api:
        with pytest.raises(openai.BadRequestError, match='purpose must be "batch"'):
            api.files.create(file=("a", b"{}"), purpose="assistants")
        before = {file.id for file in api.files.list()}
        with pytest.raises(openai.APIStatusError, match="quota_mib") as caught:
            api.files.create(file=("a", bytes(13 << 20)), purpose="batch")
        assert caught.value.status_code == 413
        assert {file.id for file in api.files.list()} == before
        assert {path.name for path in folder(jobs).glob("file-*")} == before
        with pytest.raises(openai.NotFoundError):
            api.batches.create(input_file_id="file-1", endpoint=CHAT, completion_window="24h")
        empty = api.files.create(file=("a", b"\n\n"), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="endpoint"):
            api.batches.create(
                input_file_id=empty.id, endpoint="/v1/moderations", completion_window="24h"
            )
        failed = over(api, started(api, b"\n\n").id)
        assert (failed.status, failed.errors.data[0].code) == ("failed", "empty_file")


def test_a_cancelled_batch_ends_with_what_it_has(jobs: Fleet) -> None:
    with client(jobs) as api:
        batch = started(api, jsonl([chat_line(n, max_tokens=1000) for n in range(40)]))
        until(api, batch.id, {"in_progress"})
        with pytest.raises(openai.BadRequestError, match="still reads this file"):
            api.files.delete(batch.input_file_id)
        assert api.batches.cancel(batch.id).status == "cancelling"
        done = over(api, batch.id)
        assert done.status == "cancelled"
        assert done.cancelling_at
        assert done.cancelled_at
        bad = entries(api, done.error_file_id)
        assert len(bad) + len(entries(api, done.output_file_id)) == 40
        assert bad[-1]["error"]["code"] == "batch_cancelled"
        with pytest.raises(openai.BadRequestError, match="it is cancelled"):
            api.batches.cancel(batch.id)


def test_each_line_is_answered_once_though_gateways_and_router_are_killed(jobs: Fleet) -> None:
    dice = random.Random(1)
    prompts = [[dice.randint(97, 122) for _ in range(60)] for _ in range(400)]
    lines = [ids_line(number, prompt, 20) for number, prompt in enumerate(prompts)]
    with client(jobs) as api:
        batch = started(api, jsonl(lines), COMPLETIONS)
        for count, name in ((20, "g0"), (100, "r0"), (160, "g1")):
            until_done(api, batch.id, count)
            kill(jobs, name)
            wait_until(f"{name} is back", partial(is_up, jobs, name), 30)
        done = over(api, batch.id)
        assert (done.status, done.request_counts.failed) == ("completed", 0)
        assert faults(lines, entries(api, done.output_file_id)) == {}


@pytest.mark.long
def test_a_conversation_goes_on_at_any_gateway_and_after_a_kill(jobs: Fleet) -> None:
    with client(jobs) as api:
        told, last = list[str](), asked(api, input="turn 0")
        told += ["turn 0", last.output_text]
        for turn in range(1, 6):
            if turn == 3:
                kill(jobs, "g0")
                wait_until("g0 is back", partial(is_up, jobs, "g0"), 30)
            last = asked(api, input=f"turn {turn}", previous_response_id=last.id)
            told += [f"turn {turn}", last.output_text]
        assert listed(api, last.id) == told[:-1]
        assert {row[0] for row in requests_of(jobs)} == {0}


@pytest.mark.long
def test_each_background_response_is_answered_once_though_gateways_are_killed(jobs: Fleet) -> None:
    with client(jobs) as api:
        texts = [asked(api, input=f"question {n}").output_text for n in range(12)]
        about = {"background": True, "max_output_tokens": 200}
        made = [asked(api, input=f"question {n}", **about) for n in range(12)]
        stream = asked(api, input="question 0", **about | {"max_output_tokens": 600}, stream=True)
        seen = [next(stream) for _ in range(20)]
        stream.close()
        first = holder_of(jobs, seen[0].response.id)
        for name in sorted(("g0", "g1"), key=lambda name: name != first):
            kill(jobs, name)
            wait_until(f"{name} is back", partial(is_up, jobs, name), 30)
        done = [answered(api, one.id, 120) for one in made]
        assert {one.status for one in done} <= {"completed", "incomplete"}
        for text, one in zip(texts, done, strict=True):
            assert one.output_text.startswith(text)
        check_second_run(api, seen, texts[0])
        gone = api.responses.cancel(asked(api, input="x", **about).id)
        assert gone.status == "cancelled"
        assert {row[0] for row in requests_of(jobs)} == {0}


def check_second_run(api: openai.OpenAI, seen: list[Any], text: str) -> None:
    """Of a stream that was left during its first run. `text`: what it begins with."""
    made, last = seen[0].response.id, seen[-1].sequence_number
    done, told = answered(api, made, 120), list(resumed(api, made))
    assert deltas(told) == done.output_text
    assert done.output_text.startswith(text)
    numbers = [event.sequence_number for event in told]
    second = numbers[2]
    assert second > last, "they go on after those of the first run"
    assert numbers == [0, 1, *range(second, second + len(told) - 2)]
    with pytest.raises(openai.APIStatusError, match="without stream") as caught:
        resumed(api, made, starting_after=last)
    assert caught.value.status_code == 410


def holder_of(running: Fleet, response_id: str) -> str:
    """The name of the gateway that runs it."""
    with closing(sqlite3.connect(folder(running) / "ledger.sqlite")) as ledger:
        (row,) = ledger.execute("SELECT held_by FROM responses WHERE id = ?", (response_id,))
    return str(row[0]).partition("|")[0]


def requests_of(running: Fleet) -> list[tuple[int]]:
    """How many bytes of request each response has that is over."""
    over = "SELECT length(request) FROM responses WHERE status NOT IN ('queued', 'in_progress')"
    with closing(sqlite3.connect(folder(running) / "ledger.sqlite")) as ledger:
        return ledger.execute(over).fetchall()


def test_files_and_batches_of_a_key_do_not_exist_for_another(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    ours, theirs = add_key(keys, "a"), add_key(keys, "b")
    env = FAST | {"BATON_GATEWAY__JOBS__PATH": str(tmp_path / "jobs")}
    with fleet("--engine", "sim", "--keys", str(keys), env=env) as running:
        running.wait_ready()
        with client(running, ours) as api, client(running, theirs) as other:
            done = over(api, started(api, jsonl([chat_line(1, max_tokens=2)])).id)
            assert done.status == "completed"
            for call in (
                lambda: other.files.retrieve(done.output_file_id),
                lambda: other.files.content(done.output_file_id),
                lambda: other.files.delete(done.output_file_id),
                lambda: other.batches.retrieve(done.id),
                lambda: other.batches.cancel(done.id),
                lambda: other.batches.create(
                    input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    call()
            assert list(other.files.list()) == []
            assert list(other.batches.list()) == []
            assert len(list(api.files.list())) == 2
