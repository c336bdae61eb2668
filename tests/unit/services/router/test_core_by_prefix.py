"""A prompt goes where its prefix is: through the whole core."""

import pytest

from common.blocks import Kept, KvGroup
from common.config import reading
from common.messages import Decode, Fleet, Prefill, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import prefix_hashes
from services.router.settings import from_config
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig

IDS = list(range(160))


def fleet(policy: str, prefills: int = 2, decodes: int = 2) -> Rig:
    rig = Rig(policy=policy)
    rig.gateway()
    for i in range(prefills):
        rig.prefill(f"p{i}")
    for i in range(decodes):
        rig.decode(f"d{i}")
    return rig


def submit(rig: Rig, name: str, ids: list[int], salt: str | None = None) -> tuple[str, str]:
    """Where it went: (P, D)."""
    rig.sent.clear()
    hashes = prefix_hashes(pack_ids(ids), BLOCK, salt)
    rig.submit(name, prompt=len(ids), prefix_hashes=hashes)
    prefills = [send.peer for send in rig.sent if isinstance(send.message, Prefill)]
    decodes = [send.peer for send in rig.sent if isinstance(send.message, Decode)]
    assert len(decodes) == 1
    return (prefills[0] if prefills else "", decodes[0])


def finish(rig: Rig, name: str, pair: tuple[str, str]) -> None:
    rig.prefilled(name, peer=pair[0])
    rig.started(name, peer=pair[1])
    rig.ended(name, peer=pair[1])


@pytest.mark.parametrize("policy", ["prefix_affinity", "cost"])
def test_the_next_turn_follows_the_first(policy: str) -> None:
    rig = fleet(policy, prefills=4, decodes=4)
    homes = {}
    for salt in ("a", "b", "c", "d"):
        homes[salt] = submit(rig, f"first-{salt}", IDS, salt)
    assert len(set(homes.values())) == 4, "four tenants share nothing, and load spreads them"
    for salt, home in homes.items():
        finish(rig, f"first-{salt}", home)
    for salt in ("d", "b", "a", "c"):
        pair = submit(rig, f"second-{salt}", [*IDS, *range(40)], salt)
        assert pair == homes[salt]
        finish(rig, f"second-{salt}", pair)
    known = rig.known("second-c").placement
    assert known is not None
    assert "160 " in known.sentence


def test_least_loaded_does_not_care() -> None:
    rig = fleet("least_loaded")
    first = submit(rig, "a", IDS)
    assert submit(rig, "b", IDS) != first


def test_a_lost_worker_s_prefixes_are_forgotten() -> None:
    rig = fleet("prefix_affinity")
    home = submit(rig, "a", IDS)
    finish(rig, "a", home)
    prefixes = rig.core.tables.placement_memory.prefixes
    assert prefixes.held(home[1]) == 10
    rig.gone(home[1])
    assert prefixes.held(home[1]) == 0
    assert submit(rig, "b", IDS)[1] != home[1]


def test_hashes_are_kept_only_until_placement_or_refusal() -> None:
    rig = fleet("cost")
    submit(rig, "a", IDS)
    assert rig.known("a").request.prefix == ()
    rig = Rig(max_queue=1)
    rig.gateway()
    for name in ("a", "b"):
        rig.submit(name, prompt=160, prefix_hashes=bytes(80))
    assert len(rig.known("a").request.prefix) == 10
    assert rig.state("b") == "refused"
    assert rig.known("b").request.prefix == ()


def test_more_hashes_than_allowed_are_cut_and_odd_bytes_dropped() -> None:
    rig = Rig()
    rig.gateway()
    rig.submit("a", prompt=160, prefix_hashes=bytes(8007))
    assert len(rig.known("a").request.prefix) == 512


def test_gateways_learn_the_block_size_where_prefixes_are_kept() -> None:
    rig = fleet("cost")
    assert rig.take(Fleet)[-1].block_tokens == BLOCK
    rig = Rig(prefixes=False)
    rig.gateway()
    rig.decode()
    assert rig.take(Fleet)[-1].block_tokens == 0


@pytest.mark.parametrize(
    ("engine", "kept"),
    [
        ({"kind": "vllm"}, True),
        ({"kind": "sim"}, False),
        ({"kind": "vllm", "prefix_caching": False}, False),
    ],
)
def test_prefixes_are_kept_by_vllm_with_prefix_caching(
    engine: dict[str, object], *, kept: bool
) -> None:
    config = reading.from_mapping({"decode": {"d0": {"engine": engine}}})
    assert from_config(config, "r0", "1").prefixes is kept


def test_what_a_worker_s_engine_tells_corrects_what_was_assumed() -> None:
    rig = fleet("prefix_affinity")
    home = submit(rig, "a", IDS)
    finish(rig, "a", home)
    names = prefix_hashes(pack_ids(IDS), BLOCK, None)
    for worker in home:
        rig.receive(worker, PrefixDelta(removed=names[8:]))
    others = ("p1|1", "d1|1") if home == ("p0|1", "d0|1") else ("p0|1", "d0|1")
    for worker in others:
        rig.receive(worker, PrefixDelta(stored=names))
    assert submit(rig, "b", IDS) == others


def test_a_cleared_cache_is_forgotten_before_the_rest_of_the_message() -> None:
    rig = fleet("cost")
    names = prefix_hashes(pack_ids(IDS), BLOCK, None)
    rig.receive("d0|1", PrefixDelta(stored=names))
    rig.receive("d0|1", PrefixDelta(stored=names[:8], cleared=True))
    assert rig.core.tables.placement_memory.prefixes.held("d0|1") == 1
    rig.receive("d0|1", PrefixDelta(removed=b"odd", stored=b"odd"))
    rig.receive("g0|1", PrefixDelta(stored=names))
    assert rig.core.tables.counts.dropped == {"wrong role": 1}


def test_a_worker_is_never_believed_to_hold_more_than_its_kv_cache() -> None:
    rig = Rig()
    rig.decode("d0", blocks=20)
    rig.receive("d0|1", PrefixDelta(stored=bytes(range(256)) * 2))
    assert rig.core.tables.placement_memory.prefixes.held("d0|1") == 20


WINDOWS = (KvGroup(BLOCK), KvGroup(BLOCK, Kept.WINDOW, 20))


def mixed(decodes: int = 1) -> Rig:
    rig = Rig(policy="cost")
    rig.gateway()
    rig.beat(rig.prefill("p0", groups=WINDOWS))
    for i in range(decodes):
        rig.beat(rig.decode(f"d{i}", groups=WINDOWS))
    return rig


def cached(rig: Rig, name: str) -> dict[str, int]:
    """Tokens of the prompt that its workers are thought to have."""
    placement = rig.known(name).placement
    assert placement is not None
    parts = [part.split() for part in placement.sentence.split("; ")]
    found = {words[0]: words[words.index("cached,") - 2] for words in parts if "cached," in words}
    return {worker: int(tokens) for worker, tokens in found.items()}


def test_d_can_use_what_it_was_handed_from_its_end_on_alone() -> None:
    """Of a windowed group D gets the last blocks: a prompt that leaves the first in the middle
    finds none of use, and one that goes on after its end finds all. P computed all of them."""
    rig = mixed()
    finish(rig, "first", submit(rig, "first", IDS))
    finish(rig, "inside", submit(rig, "inside", [*IDS[:96], *range(900, 960)]))
    assert cached(rig, "inside") == {"p0": 96}
    submit(rig, "after", [*IDS, *range(800, 840)])
    assert cached(rig, "after") == {"p0": 160, "d0": 160}


def test_reports_of_a_group_correct_what_is_known_of_it() -> None:
    rig = mixed()
    finish(rig, "first", submit(rig, "first", IDS))
    hashes = prefix_hashes(pack_ids(IDS), BLOCK, None)
    for worker in ("p0|1", "d0|1"):
        rig.receive(worker, PrefixDelta(removed=hashes[-8:], group=1))
    finish(rig, "after", submit(rig, "after", [*IDS, *range(800, 840)]))
    assert cached(rig, "after") == {"p0": 144}
    rig.receive("d0|1", PrefixDelta(stored=hashes, group=1))
    submit(rig, "again", [*IDS, *range(700, 740)])
    assert cached(rig, "again")["d0"] == 160


def test_a_group_that_the_worker_does_not_have_is_ignored() -> None:
    rig = mixed()
    hashes = prefix_hashes(pack_ids(IDS), BLOCK, None)
    rig.receive("d0|1", PrefixDelta(stored=hashes, group=7))
    memory = rig.core.tables.placement_memory
    assert memory.prefixes_of(7).held("d0|1") == 0
    rig.receive("d0|1", PrefixDelta(stored=hashes, group=1))
    assert memory.prefixes_of(1).held("d0|1") == 10
    assert memory.prefixes.held("d0|1") == 0
    rig.gone("d0|1")
    assert memory.prefixes_of(1).held("d0|1") == 0
