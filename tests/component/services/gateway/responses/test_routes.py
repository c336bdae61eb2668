"""A stored response is read, listed, deleted and cancelled by whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.services.gateway.responses.standins import (
    BACKGROUND,
    Standin,
    at,
    behind,
    in_ledger,
    post,
    said,
    until,
)
from tests.component.services.gateway.rig import MakeRig, Rig


async def test_a_deleted_response_is_gone(kept: Rig, jobs: dict[str, Any]) -> None:
    shown = await post(kept)
    deleted = await at(kept, shown["id"], method="DELETE")
    assert deleted == {"id": shown["id"], "object": "response", "deleted": True}
    await at(kept, shown["id"], 404)
    await at(kept, shown["id"], 404, method="DELETE")
    assert in_ledger(jobs, "SELECT * FROM responses") == []


async def test_what_a_key_has_does_not_exist_for_another(
    make_rig: MakeRig,
    jobs: dict[str, Any],
    standin: Standin,
    two_keys: tuple[str, list[dict[str, str]]],
) -> None:
    file, (ours, theirs) = two_keys
    rig = await behind(make_rig, standin, jobs=jobs, keys_file=file)
    shown = await post(rig, headers=ours)
    for path, method in (("", "GET"), ("", "DELETE"), ("/input_items", "GET"), ("/cancel", "POST")):
        await at(rig, shown["id"] + path, 404, method, headers=theirs)
    error = await post(rig, 404, headers=theirs, previous_response_id=shown["id"])
    assert error["error"]["param"] == "previous_response_id"
    assert await at(rig, shown["id"], headers=ours) == shown


async def test_input_items_are_listed_by_pages(kept: Rig) -> None:
    shown = await post(kept, input=[{"role": "user", "content": str(n)} for n in range(3)])
    page = await at(kept, f"{shown['id']}/input_items?order=asc&limit=2")
    assert (said({"input": page["data"]}), page["has_more"]) == (["0", "1"], True)
    page = await at(kept, f"{shown['id']}/input_items?order=asc&after={page['last_id']}")
    assert (said({"input": page["data"]}), page["has_more"]) == (["2"], False)
    page = await at(kept, f"{shown['id']}/input_items")
    assert said({"input": page["data"]}) == ["2", "1", "0"]
    for wrong in ("order=up", "limit=0", "limit=101", "after=x"):
        error = await at(kept, f"{shown['id']}/input_items?{wrong}", 400)
        assert error["error"]["param"] == wrong.split("=")[0]


@pytest.mark.parametrize("about", [{}, BACKGROUND])
async def test_one_that_was_not_made_to_be_streamed_is_not(kept: Rig, about: Any) -> None:
    asked = await post(kept, **about)
    shown = await until(kept, asked["id"], "completed")
    error = await at(kept, f"{shown['id']}?stream=true", 400)
    assert error["error"]["param"] == "stream"
    assert "background: true and stream: true" in error["error"]["message"]
    assert await at(kept, f"{shown['id']}?stream=false") == shown


async def test_only_what_is_under_way_in_the_background_is_cancelled(kept: Rig) -> None:
    shown = await post(kept)
    error = await at(kept, f"{shown['id']}/cancel", 400, method="POST")
    assert "background: true" in error["error"]["message"]
    asked = await post(kept, **BACKGROUND)
    await until(kept, asked["id"], "completed")
    error = await at(kept, f"{asked['id']}/cancel", 400, method="POST")
    assert "it is completed" in error["error"]["message"]
