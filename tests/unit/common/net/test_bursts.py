"""Work in bursts leaves the loop to others, by number and by time."""

from __future__ import annotations

import asyncio
import math

from common.net.bursts import BURST, BURST_SECONDS, Bursts


class Pieces:
    """So many, each of which takes so long by its clock."""

    def __init__(self, left: int, seconds: float = 0.0) -> None:
        self.left, self.done, self._seconds, self._now = left, 0, seconds, 0.0
        self.bursts = Bursts(self.take, lambda: self._now)

    def take(self) -> bool:
        if not self.left:
            return False
        self.left -= 1
        self.done += 1
        self._now += self._seconds
        return True

    async def by_turn(self) -> list[int]:
        """What was done after each turn of the loop, until nothing changes."""
        seen = [self.done]
        while len(seen) < 3 or seen[-1] != seen[-2]:
            await asyncio.sleep(0)
            seen.append(self.done)
        return seen


async def test_a_burst_is_of_so_many_pieces() -> None:
    pieces = Pieces(2 * BURST + 1)
    pieces.bursts.start()
    assert await pieces.by_turn() == [0, BURST, 2 * BURST, 2 * BURST + 1, 2 * BURST + 1]


async def test_pieces_that_take_long_are_fewer() -> None:
    pieces = Pieces(5, 0.6 * BURST_SECONDS)
    pieces.bursts.start()
    assert await pieces.by_turn() == [0, 2, 4, 5, 5]


async def test_a_turn_has_one_burst_however_often_it_is_asked_for() -> None:
    """A message that is answered asks for the next ones: 128 of them asked for 128 bursts."""
    pieces = Pieces(4 * BURST)

    def answer() -> bool:
        pieces.bursts.soon()
        return pieces.take()

    pieces.bursts = Bursts(answer)
    pieces.bursts.start()
    assert (await pieces.by_turn())[:4] == [0, BURST, 2 * BURST, 3 * BURST]


async def test_what_comes_later_is_done_when_it_is_told() -> None:
    pieces = Pieces(0)
    pieces.bursts.soon()
    pieces.left = 1
    assert await pieces.by_turn() == [0, 0, 0], "it has not started"
    pieces.bursts.start()
    assert (await pieces.by_turn())[-1] == 1


async def test_who_needs_all_gets_all_up_to_the_number() -> None:
    pieces = Pieces(BURST + 1, 9.0)
    pieces.bursts.run(math.inf)
    assert pieces.done == BURST
