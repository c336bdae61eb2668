"""Equal for what means the same, readable where a person must compare."""

from common.engine.fingerprint import (
    fingerprint_of,
    lossy_meaning_of,
    meaning_of,
    parts_of,
)

VALUES: dict[str, object] = {
    "block_tokens": 128,
    "dtype": "torch.float32",
    "config": {"layers": 4, "rope": {"theta": 1.0}},
    "weights": ["a.safetensors:12:ff"],
}


def test_short_values_are_readable_and_long_ones_hashed() -> None:
    parts = parts_of(VALUES)
    assert (parts["block_tokens"], parts["dtype"]) == ("128", "torch.float32")
    assert len(parts["config"]) == len(parts["weights"]) == 12
    assert len(parts_of({"name": "x" * 99})["name"]) == 12


def test_every_part_counts_and_their_order_does_not() -> None:
    whole = fingerprint_of(parts_of(VALUES))
    assert fingerprint_of(parts_of(dict(reversed(VALUES.items())))) == whole
    for key in VALUES:
        assert fingerprint_of(parts_of({**VALUES, key: "other"})) != whole


def test_blocks_ranks_the_device_and_the_drafter_change_the_layout_and_not_the_meaning() -> None:
    layout = {"block_tokens", "drafter", "drafter_config", "kv_heads", "tensor_parallel"}
    layout |= {"args.attention_backend", "attn_isa", "device", "kv_layout"}
    values = {**VALUES, **dict.fromkeys(layout, "one")}
    meaning = meaning_of(parts_of(values))
    for key in (*values, "anything"):
        other = meaning_of(parts_of({**values, key: "other"}))
        assert (other == meaning) is (key in layout)
    assert meaning != fingerprint_of(parts_of(VALUES))


def test_the_element_type_changes_the_meaning_and_not_the_lossy_one() -> None:
    lossy = lossy_meaning_of(parts_of(VALUES))
    for key in VALUES:
        other = lossy_meaning_of(parts_of({**VALUES, key: "other"}))
        assert (other == lossy) is (key in ("block_tokens", "dtype"))
    assert lossy != meaning_of(parts_of(VALUES))
