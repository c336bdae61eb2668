"""What a job may cost, by what its body may have."""

from __future__ import annotations

import pytest

from common.config import RequestLimits
from services.gateway.api.routes import POOLED, Route
from services.gateway.helper.jobs import SMALL_BYTES, ApiJob, JobLimits

LIMITS = RequestLimits(
    check_ms_max=100,
    check_mib_max=64,
    images_ms_max=2000,
    images_mib_max=128,
    inputs_ms_max=500,
    inputs_mib_max=256,
)


@pytest.mark.parametrize("word", [b'{"type": "image_url"}', b'{"type":"input_image"}', b'"image"'])
def test_a_body_that_may_have_images_has_limits_of_its_own_and_leaves_a_helper_free(
    word: bytes,
) -> None:
    job = ApiJob(word, 1, route=Route.CHAT)
    assert job.limits(LIMITS) == JobLimits("images", 2000, 128)
    assert job.is_slow
    sentence = job.limits(LIMITS).too_much(job).message
    assert "2000 ms of CPU time (gateway.limits.images_ms_max)" in sentence
    assert "128 MiB (gateway.limits.images_mib_max)" in sentence


@pytest.mark.parametrize("route", POOLED)
def test_what_a_pooling_model_is_asked_has_limits_of_its_own(route: Route) -> None:
    job = ApiJob(b'{"input": ["image"]}', 1, route=route)
    assert job.limits(LIMITS) == JobLimits("inputs", 500, 256)
    sentence = job.limits(LIMITS).too_much(job).message
    assert "500 ms of CPU time (gateway.limits.inputs_ms_max)" in sentence
    assert "256 MiB (gateway.limits.inputs_mib_max)" in sentence


def test_text_has_those_of_all_bodies() -> None:
    job = ApiJob(b'{"type": "text"}', 1, route=Route.CHAT)
    assert job.limits(LIMITS) == JobLimits("check", 100, 64)
    assert not job.is_slow
    assert ApiJob(bytes(SMALL_BYTES + 1), 1, route=Route.CHAT).is_slow
    assert "100 ms" in job.limits(LIMITS).too_much(job).message
