"""What the handoff adds to a prefill: only what the wire does not move meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import AdmissionConfig
from services.router.estimates.estimates import Estimates


@pytest.mark.parametrize(("computing", "exposed"), [(0.0, 0.4), (0.1, 0.3), (0.4, 0.0), (2.0, 0.0)])
def test_a_transfer_overlaps_the_computing(
    monkeypatch: pytest.MonkeyPatch, computing: float, exposed: float
) -> None:
    estimates = Estimates(AdmissionConfig())

    def seconds(size: float, *pair: Any) -> float:
        return size / 1_000

    monkeypatch.setattr(type(estimates.bandwidth), "__len__", lambda _: 1)
    monkeypatch.setattr(Estimates, "transfer_seconds", lambda _, size, *pair: seconds(size))
    assert estimates.exposed_transfer_s(400.0, computing) == pytest.approx(exposed)
