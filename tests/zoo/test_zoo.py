"""`docs/models.md` has every family, and a sample of them, another each day, does what it says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.zoo.__main__ import SAMPLED, STRIDE, chosen, on_two_ranks
from tests.zoo.checkpoints import ROOT, make_checkpoints
from tests.zoo.families import FAMILIES
from tests.zoo.page import PAGE, name_of, page, row, rows_of, works
from tests.zoo.trial import Group, Outcome, bytes_on_wire

SECONDS = 500
pytestmark = pytest.mark.timeout(SECONDS)


@pytest.fixture(scope="module", autouse=True)
def checkpoints_of_the_rows_made_here() -> None:
    """A row names the architecture that a checkpoint's configuration does; a sample may lack it."""
    make_checkpoints(list(FAMILIES[:2]))


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.long
def test_a_sample_does_what_the_page_says() -> None:
    """In a process of its own, because this one may have what a fork of an engine must not meet."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.zoo", "--sample"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_the_page_has_every_family_and_nothing_wrong() -> None:
    rows = rows_of(PAGE.read_text())
    assert [name_of(line) for line in rows] == [family.name for family in FAMILIES]
    assert not [line for line in rows if "WRONG" in line]


def test_a_row_says_what_was_found() -> None:
    family = FAMILIES[0]
    groups = [Group("FullAttentionSpec", 3, 128), Group("SlidingWindowSpec", 1, 128, 64)]
    good = Outcome(family, groups, block_tokens=128)
    assert "| 3 full, 1 window | yes | - | blocks of 128 tokens |" in row(good)
    assert row(Outcome(family, refused="this | that")).endswith("| refused | - | this \\| that |")
    assert "| vLLM does not start | - | why |" in row(Outcome(family, unserved="why"))
    assert "WRONG" in row(Outcome(family, wrong=["some text"]))
    alone = replace(family, alone="why")
    said = row(Outcome(alone, groups, block_tokens=16))
    assert said.endswith("| yes, one at a time | - | blocks of 16 tokens; why |")


def test_what_was_found_on_two_ranks_is_a_cell_of_its_own() -> None:
    family = FAMILIES[0]
    alone = row(Outcome(family, refused="this | that"))
    both = row(Outcome(family, ranks=2, block_tokens=128), alone)
    assert both.endswith("| refused | yes | this \\| that |")
    assert row(Outcome(family, refused="this | that"), both) == both
    refused = row(Outcome(family, ranks=2, unserved="why"), both)
    assert "| vLLM does not start: why |" in refused


def test_a_new_row_replaces_that_of_its_family_alone() -> None:
    written = PAGE.read_text()
    changed = page([Outcome(FAMILIES[1], unserved="why")], written)
    before, after = rows_of(written), rows_of(changed)
    differing = [name_of(line) for line in after if line not in before]
    assert (len(before), differing) == (len(after), [FAMILIES[1].name])
    assert page([], written) == written


def test_successive_days_take_turns_through_all() -> None:
    samples = [chosen([], day) for day in range(STRIDE)]
    assert sorted(family.key for sample in samples for family in sample) == sorted(
        family.key for family in FAMILIES
    )
    assert max(map(len, samples)) <= SAMPLED


def test_one_of_a_sample_is_tried_on_two_ranks_another_each_time() -> None:
    sample = chosen([], 0)
    able = [family for family in sample if works(PAGE.read_text(), family, 2)]
    taken = [on_two_ranks(sample, STRIDE * turn) for turn in range(len(able))]
    assert taken == [[family] for family in able]


@pytest.mark.parametrize(
    ("kind", "reach", "prompt_tokens", "blocks"),
    [
        ("FullAttentionSpec", 0, 1, 0),
        ("FullAttentionSpec", 0, 2, 1),
        ("FullAttentionSpec", 0, 129, 1),
        ("FullAttentionSpec", 0, 130, 2),
        ("SlidingWindowSpec", 64, 1000, 1),
        ("SlidingWindowSpec", 64, 1025, 1),
        ("SlidingWindowSpec", 64, 1026, 2),
        ("SlidingWindowSpec", 128, 1025, 1),
        ("SlidingWindowSpec", 129, 1025, 1),
        ("SlidingWindowSpec", 130, 1025, 2),
        ("ChunkedLocalAttentionSpec", 256, 1025, 0),
        ("ChunkedLocalAttentionSpec", 256, 1026, 1),
        ("ChunkedLocalAttentionSpec", 256, 1154, 2),
        ("MambaSpec", 0, 1, 0),
        ("MambaSpec", 0, 1000, 1),
    ],
)
def test_the_blocks_on_the_wire_follow_from_the_kind(
    kind: str, reach: int, prompt_tokens: int, blocks: int
) -> None:
    groups = [Group(kind, 2, 128, reach), Group(kind, 1, 128, reach)]
    assert bytes_on_wire(groups, 10, prompt_tokens) == 2 * 10 * blocks
