"""Which worker will probably compute a request that is still in the queue, and what its store lacks
of the prompt meanwhile.

The worker is the one that would be chosen if all had room. It is told of the request when another
worker's store, or its own disk, has more of the prompt than its memory, and getting that is
predicted to be sooner than computing. When the
choice is made, the request may go elsewhere; what was prefetched is then of no use, and nothing
else is lost.
"""

from __future__ import annotations

from typing import NamedTuple

from common.messages import KvSource
from services.router.placement import place
from services.router.placement.pull import best_pull, is_own, source_of
from services.router.placement.types import Placement, PlacementContext, Policy, Views

BODY_BYTES_MAX = 512 << 10
"""Of the encoded prompt of a request that is told of; a message has room for little more."""


class Prefetched(NamedTuple):
    """A worker that was told of a request in the queue."""

    identity: str
    name: str
    #: Leading tokens of the prompt that it may get.
    tokens: int
    #: Out of whose store it may pull them; None: its own disk has them.
    source: KvSource | None
    #: Where they lie: `store` or `disk`.
    medium: str

    @property
    def sentence(self) -> str:
        whose = f"out of the {self.medium} of {self.source.name}" if self.source else ""
        return (
            f"{self.name} was to prefetch {self.tokens} tokens of it "
            f"{whose or 'from its own disk'} while it waited"
        )


def choose(
    context: PlacementContext,
    decodes: Views,
    prefills: Views,
    policy: Policy,
) -> Prefetched | None:
    """`decodes` and `prefills`: all ready workers. None: nobody is to be told."""
    likely = place.likely(context, decodes, prefills, policy)
    if likely is None:
        return None
    view, identity = likely.view, likely.view.identity
    usable = (context.request.prompt_tokens - 1) // view.block_tokens * view.block_tokens
    own = [
        stored.tokens - stored.on_disk for stored in context.stored if stored.identity == identity
    ]
    if max(context.cached.get(identity, 0), *own, 0) >= usable:
        return None
    pull = best_pull(context, view, local=likely.local)
    if pull is None or pull.gain_s <= 0:
        return None
    source = None if is_own(pull, view) else source_of(pull)
    return Prefetched(identity, view.name, pull.stored.tokens, source, pull.stored.medium)


def told(placement: Placement, prefetched: Prefetched | None) -> Placement:
    """With what was done before, for an operator."""
    if prefetched is None:
        return placement
    return placement._replace(sentence=f"{placement.sentence}; {prefetched.sentence}")
