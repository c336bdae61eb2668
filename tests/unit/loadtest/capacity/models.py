"""A worker of round numbers, for models of fleets."""

from loadtest.capacity.profile import Profile

PROFILE = Profile(
    prefill_tokens_per_s=10_000.0,
    prefill_ms=0.0,
    decode_step_ms=10.0,
    decode_step_ms_per_seq=1.0,
    bandwidth_bytes_per_s=1e9,
    kv_bytes_per_token=100_000,
    control_ms=0.0,
)
