"""The error of fp8 KV on a model's logits is measured, e4m3's own, and none without compression."""

import pytest
import torch

from common.model.embedded import ensure_embedded_model
from tests.bench.compression import by_codec, measured_error

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]


def test_fp8_moves_logits_no_more_than_e4m3_must_and_a_copy_not_at_all() -> None:
    folder = ensure_embedded_model()
    copied, found = measured_error(folder, torch.clone), measured_error(folder, by_codec)
    plain = measured_error(folder, lambda pages: pages.to(torch.float8_e4m3fn).float())
    print(f"copied {copied}\nfp8 {found}\ne4m3 without scales {plain}")
    assert (copied.kv, copied.logit, copied.logprob, copied.same) == (0.0, 0.0, 0.0, 1.0)
    assert 0.01 < found.kv < 0.03, "a mantissa of three bits"
    assert 0 < found.logit < 3 * plain.logit
