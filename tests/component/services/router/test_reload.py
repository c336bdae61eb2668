"""A fleet file read again: what changed comes into force, and what an operator set stays."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from common.config import Config, from_mapping
from common.errors import ConfigError
from common.net.admin_client import ask
from common.process.notify import Notifier
from common.process.watchdog_and_reload import Source, WatchdogAndReload
from services.router import reload
from services.router.admission.limits import Limits
from services.router.events import LimitsChosen, PolicyChosen
from tests.component.services.router.admin.test_answer import serve_one
from tests.component.services.router.daemon_rig import running

ROOT = Path(__file__).parents[4]
LIMITS = Limits(max_active=0, max_queue=7, queue_bytes_max=100, ttft_slo_ms=0.0)


def file(**router: object) -> Config:
    return from_mapping({"router": router})


def test_only_what_changed_in_the_file_is_ordered() -> None:
    router = file(max_queue=9, ttft_slo_ms=50, policy="round_robin").router
    assert reload.orders(router, ("router.ttft_slo_ms",), LIMITS) == [
        LimitsChosen(replace(LIMITS, ttft_slo_ms=50))
    ]
    assert reload.orders(router, ("router.policy",), LIMITS) == [PolicyChosen("round_robin", "")]
    assert reload.orders(router, ("fleet.log_level",), LIMITS) == []


def test_every_live_key_is_one_of_the_file() -> None:
    fields = set(file().router.__struct_fields__)
    assert {key.removeprefix("router.") for key in reload.KEYS} <= fields


class Files:
    """What the file says at each reading."""

    def __init__(self) -> None:
        self.now: Config | ConfigError = file()

    def read(self) -> Config:
        if isinstance(self.now, ConfigError):
            raise self.now
        return self.now


async def test_the_verb_reload_reads_applies_and_names_the_rest(tmp_path: Path) -> None:
    files = Files()
    source = Source(file(), files.read, ("fleet", "router"))
    watchdog_and_reload = WatchdogAndReload(Notifier({}), structlog.get_logger("test"), source)
    async with running(tmp_path, watchdog_and_reload=watchdog_and_reload) as router:
        await ask(router.admin, "limits", {"max_active": 3})
        files.now = file(max_queue=5, policy="round_robin", history=9)
        told = await ask(router.admin, "reload")
        assert told.result == {
            "applied": ["router.max_queue", "router.policy"],
            "needs_restart": ["router.history"],
            "sentence": "router.max_queue, router.policy; after a restart: router.history",
        }
        limits = (await ask(router.admin, "limits")).result["limits"]
        assert (limits["max_queue"], limits["max_active"]) == (5, 3)
        assert (await ask(router.admin, "policy")).result["policy"] == "round_robin"
        files.now = ConfigError("router.max_queue", "expected int")
        refused = await ask(router.admin, "reload")
        assert not refused.ok
        assert refused.error["code"] == "config_invalid"
        assert (await ask(router.admin, "limits")).result["limits"]["max_queue"] == 5


async def test_events_go_on_from_the_last_number(tmp_path: Path) -> None:
    async with running(tmp_path) as router:
        await serve_one(router, "abc")
        async with asyncio.timeout(5):
            told = (await ask(router.admin, "events")).result
            while not any("d0 is ready" in event["sentence"] for event in told["events"]):
                told = (await ask(router.admin, "events")).result
        last = told["last"]
        assert [event["number"] for event in told["events"]] == list(range(1, last + 1))
        await ask(router.admin, "drain", {"worker": "d0"})
        news = (await ask(router.admin, "events", {"after": last})).result
        assert [event["number"] for event in news["events"]] == [last + 1]
        assert "an operator's order" in news["events"][0]["sentence"]


async def test_keys_in_use_are_shown(tmp_path: Path) -> None:
    async with running(tmp_path) as router:
        await serve_one(router, "abc", finish=False)
        rows = (await ask(router.admin, "keys")).result
        assert [(row["key_id"], row["running"], row["queued"]) for row in rows] == [("", 1, 0)]


async def test_the_script_of_the_documentation_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "admin.md").read_text()
    match = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert match is not None
    assert match[1].count("\n") <= 12
    async with running(tmp_path) as router:
        await serve_one(router, "abc")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            match[1],
            env=os.environ | {"BATON_RUN_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert (process.returncode, out.decode()) == (0, "d0 ready 0% of its KV\n")


@pytest.mark.parametrize("args", [{"after": -2}, {"limit": 0}, {"after": "x"}])
async def test_wrong_arguments_of_events_are_answered(
    tmp_path: Path, args: dict[str, object]
) -> None:
    async with running(tmp_path) as router:
        assert (await ask(router.admin, "events", args)).error["code"] == "invalid_request"
