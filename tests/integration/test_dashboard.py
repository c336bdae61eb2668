"""The dashboard as a person sees it: headless Chromium against a fleet under load."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from tests.rigs.browser import Page, chromium, installed
from tests.rigs.fleet import Fleet, fleet, wait_until

needs_browser = pytest.mark.skipif(
    installed() is None, reason="no chromium here: `make dashboard` installs it and runs this"
)
PROMPT = "The quick brown fox jumps over the lazy dog. " * 30
MODELS = ("chat", "code")
TEXT = "document.getElementById('{}').textContent"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with chromium(tmp_path) as opened:
        yield opened
        assert opened.errors == []


@pytest.fixture
def two_models() -> Iterator[Fleet]:
    names = [flag for name in MODELS for flag in ("--model", "baton-tiny", "--name", name)]
    with fleet("--engine", "sim", *names) as up:
        yield up.wait_ready()


async def loaded(fleet: Fleet) -> None:
    """Some requests, some with KV that moved."""
    api = openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0)
    more = {"ignore_eos": True}
    for _ in range(6):
        answer = await api.completions.create(
            model="baton-tiny", prompt=PROMPT, max_tokens=30, extra_body=more
        )
        assert answer.choices[0].finish_reason == "length"


async def keep(page: Page, name: str) -> None:
    """Where `BATON_PICTURES` names a folder, the picture is kept there to be looked at."""
    picture = await page.picture()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    folder = os.environ.get("BATON_PICTURES")
    if folder:
        path = Path(folder) / f"{name}.png"
        path.write_bytes(picture)


def url(fleet: Fleet, path: str = "/") -> str:
    return f"http://127.0.0.1:{fleet.health_port}{path}"


@needs_browser
@pytest.mark.parametrize(("name", "width", "dark"), [("wide", 1400, False), ("dark", 1400, True)])
async def test_the_whole_fleet_is_on_the_page_and_kept_current(
    sim_fleet: Fleet, page: Page, name: str, width: int, dark: bool
) -> None:
    await loaded(sim_fleet)
    await page.open(url(sim_fleet), width, 1300, dark=dark)
    await page.until("document.querySelectorAll('.worker').length === 4")
    await page.until(f"{TEXT.format('verdict')} !== 'connecting'")
    for worker in ("p0", "p1", "d0", "d1"):
        assert await page.value(f"!!document.querySelector('[data-worker={worker}]')")
    assert await page.value("document.querySelectorAll('#pairs td').length") == 4
    assert await page.value("document.querySelectorAll('#wires path').length") == 4
    await page.until("document.querySelectorAll('#requests tbody tr').length >= 6")
    for section in ("by-model", "by-store"):
        assert await page.value(f"document.getElementById('{section}').hidden")
    rounds = int(await page.value("document.body.dataset.rounds"))
    await page.until(f"Number(document.body.dataset.rounds) > {rounds + 1}")
    await page.until("document.querySelectorAll('#c-load .line').length === 2")
    await page.until("document.querySelectorAll('#c-roles .line').length === 2")
    assert await page.value("document.documentElement.dataset.theme") == (
        "dark" if dark else "light"
    )
    await keep(page, name)


@needs_browser
async def test_one_click_leads_to_a_requests_timeline(sim_fleet: Fleet, page: Page) -> None:
    await loaded(sim_fleet)
    await page.open(url(sim_fleet), 1400, 1000)
    await page.until("document.querySelectorAll('#requests tbody tr').length >= 6")
    await page.value("document.querySelector('#requests tbody tr').click()")
    await page.until("document.querySelectorAll('#gantt rect').length >= 4")
    assert "most of it" in await page.value(TEXT.format("story-why"))
    assert "placed by cost" in await page.value(TEXT.format("story-attempts"))
    assert "quick brown fox" not in await page.value("document.body.textContent")
    await keep(page, "story")


@needs_browser
async def test_a_phone_shows_it_without_sideways_scrolling(sim_fleet: Fleet, page: Page) -> None:
    await loaded(sim_fleet)
    await page.open(url(sim_fleet), 400, 1800)
    await page.until("document.querySelectorAll('.worker').length === 4")
    assert await page.value("document.documentElement.scrollWidth") <= 400
    await keep(page, "phone")


@needs_browser
async def test_each_of_two_models_has_a_row_and_its_workers_say_so(
    two_models: Fleet, page: Page
) -> None:
    await page.open(url(two_models), 1400, 1300)
    await page.until("document.querySelectorAll('.worker').length === 4")
    await page.until("document.querySelectorAll('#models tbody tr').length === 2")
    assert not await page.value("document.getElementById('by-model').hidden")
    for number, model in enumerate(MODELS):
        row = f"document.querySelector('[data-model={model}]')"
        await page.until(f"{row}?.cells[1].textContent === 'ready'")
        for worker in (f"p{number}", f"d{number}"):
            card = f"document.querySelector('[data-worker={worker}]')"
            assert model in await page.value(f"{card}.textContent")
    await keep(page, "models")


def get(fleet: Fleet, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.health_port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, answer.read().decode(), told


def test_what_the_page_is_made_of_comes_from_here_only(sim_fleet: Fleet) -> None:
    for path in ("/", "/page.css", "/page.js", "/draw.js"):
        status, body, headers = get(sim_fleet, path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "http://" not in body.replace("http://www.w3.org/", "")
        assert "https://" not in body


def test_another_host_name_is_not_served(sim_fleet: Fleet) -> None:
    assert get(sim_fleet, "/api/state", Host="evil.example")[0] == 403
    assert get(sim_fleet, "/health", Host="evil.example")[0] == 200
    assert get(sim_fleet, "/api/explain/nope")[0] == 404


def test_the_state_is_json_and_its_health_agrees(sim_fleet: Fleet) -> None:
    status, body, _ = get(sim_fleet, "/api/state")
    state = json.loads(body)
    assert status == 200
    assert {worker["name"] for worker in state["workers"]} == {"p0", "p1", "d0", "d1"}
    wait_until("it is up", lambda: get(sim_fleet, "/health")[0] == 200)
