"""Which worker will probably compute a request that is still in the queue, and what its store lacks
of the prompt meanwhile.

The worker is the one that would be chosen if all had room. It is told of the request when another
worker's store has more of the prompt and a pull is predicted to be sooner than computing. When the
choice is made, the request may go elsewhere; what was prefetched is then of no use, and nothing
else is lost.
"""

from __future__ import annotations

from typing import NamedTuple

from common.messages import KvSource
from services.router.placement import place
from services.router.placement.pull import best_pull, source_of
from services.router.placement.types import Placement, PlacementContext, Policy, Views

BODY_BYTES_MAX = 512 << 10
"""Of the encoded prompt of a request that is told of; a message has room for little more."""


class Prefetched(NamedTuple):
    """A worker that was told of a request in the queue."""

    identity: str
    name: str
    #: Out of whose store it may pull the beginning of the prompt.
    source: KvSource

    @property
    def sentence(self) -> str:
        return (
            f"{self.name} was to prefetch {self.source.tokens} tokens of it out of the store of "
            f"{self.source.name} while it waited"
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
    own = [stored.tokens for stored in context.stored if stored.identity == identity]
    if max(context.cached.get(identity, 0), *own, 0) >= usable:
        return None
    pull = best_pull(context, view, local=likely.local)
    source = source_of(pull) if pull is not None and pull.gain_s > 0 else None
    return Prefetched(identity, view.name, source) if source is not None else None


def told(placement: Placement, prefetched: Prefetched | None) -> Placement:
    """With what was done before, for an operator."""
    if prefetched is None:
        return placement
    return placement._replace(sentence=f"{placement.sentence}; {prefetched.sentence}")
