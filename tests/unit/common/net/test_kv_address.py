import pytest

from common.net.kv_address import address_of, joined_addresses, parts_between, rank_addresses


def test_each_rank_takes_its_own_address() -> None:
    assert address_of("h:1", 0) == "h:1"
    assert [address_of("h:1,g:2", rank) for rank in (0, 1)] == ["h:1", "g:2"]
    with pytest.raises(ValueError, match="names 1 ranks, and this is rank 1"):
        address_of("h:1", 1)


def test_kv_is_cut_so_that_each_part_is_on_one_rank_at_both_ends() -> None:
    one, two, three, four = (joined_addresses(["h:1"] * ranks) for ranks in (1, 2, 3, 4))
    assert len(rank_addresses(three)) == 3
    assert [parts_between(one, one), parts_between(two, two)] == [1, 1], "from rank to rank"
    assert [parts_between(one, two), parts_between(two, one), parts_between(two, four)] == [2, 2, 4]
    assert parts_between(two, three) == 6
