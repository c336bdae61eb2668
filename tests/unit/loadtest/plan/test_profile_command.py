"""A profile is of the workers of one model, and of what the router learned of them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from common.net.admin_status import LearnedEstimates
from loadtest.plan.profile_command import estimates_of, of_model
from services.router.admin.verb import View
from services.router.admin.verbs.status import run
from tests.unit.common.net.rows import WORKER
from tests.unit.services.router.rig import Rig


@pytest.mark.parametrize(("model", "names"), [("chat", ["d0"]), ("code", ["d1"]), ("fast", [])])
def test_workers_of_another_model_are_left_out(model: str, names: list[str]) -> None:
    rows = [replace(WORKER, name=f"d{i}", model=name) for i, name in enumerate(("chat", "code"))]
    assert [row.name for row in of_model(rows, model)] == names


def test_the_only_model_may_be_called_by_an_alias_and_who_is_not_here_counts_for_nothing() -> None:
    rows = [
        replace(WORKER, name="d0", model="chat"),
        replace(WORKER, name="x", model="nope", state="refused"),
        replace(WORKER, name="d9", model="chat", state="gone"),
    ]
    assert [row.name for row in of_model(rows, "fast")] == ["d0"]


def test_what_was_learned_is_of_the_model() -> None:
    rig = Rig(models=("chat", "code"))
    status = run(View(rig.core.shared, rig.now, {}), {})
    code = LearnedEstimates(pair_bytes_per_s={"p1>d1": 7.0})
    models = tuple(
        replace(each, estimates=code) if each.model == "code" else each for each in status.models
    )
    status = replace(status, models=models)
    assert estimates_of(status, "code").pair_bytes_per_s == {"p1>d1": 7.0}
    assert estimates_of(status, "chat").pair_bytes_per_s == {}
    assert estimates_of(status, "fast") == status.estimates
