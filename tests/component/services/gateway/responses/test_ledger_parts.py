"""A gateway without stored responses, and what one with them counts."""

from __future__ import annotations

from typing import Any

import pytest

from services.gateway.responses.routes import ROUTES
from tests.component.services.gateway.responses.standins import (
    BACKGROUND,
    Standin,
    behind,
    in_ledger,
    post,
    until,
)
from tests.component.services.gateway.rig import MakeRig, Rig


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("jobs_of", ["", "no responses"])
async def test_where_none_are_stored_each_route_names_the_setting(
    make_rig: MakeRig, jobs: dict[str, Any], method: str, path: str, jobs_of: str
) -> None:
    rig = await make_rig(**({"jobs": jobs | {"responses_max": 0}} if jobs_of else {}))
    response = await rig.http.request(method, rig.url + path.replace("{response_id}", "x"))
    assert response.status == 501
    assert "[gateway.jobs] path" in (await response.json())["error"]["message"]


async def test_where_none_are_stored_the_request_is_answered_as_it_is(
    make_rig: MakeRig, standin: Standin
) -> None:
    rig = await behind(make_rig, standin)
    shown = await post(rig, store=True)
    assert "store" not in shown
    assert standin.asked == [{"model": "m", "input": "hi", "store": True}]


async def test_what_became_of_them_is_counted(kept: Rig) -> None:
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "completed")
    async with kept.http.get(f"{kept.url}/metrics") as response:
        text = await response.text()
    assert 'baton_gateway_responses_total{outcome="stored"} 1.0' in text
    assert 'baton_gateway_background_responses_total{outcome="answered"} 1.0' in text


async def test_a_gateway_of_plain_text_takes_none_that_it_cannot_run(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs, text="light")
    await rig.ready()
    for background in (True, False):
        error = await post(rig, 400, background=background)
        assert "gateway.text" in error["error"]["message"]
    assert in_ledger(jobs, "SELECT id FROM responses") == []
