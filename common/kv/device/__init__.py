"""Paged KV on a card (a GPU): copies out of it and into it that run while the KV thread goes on.

`common/engine/connector` makes the memory, and the rest of `common/kv` sees it as `DeviceCopies`
(`common/kv/layout.py`) only, so that nothing else imports torch. Start with `memory.py`, then
`pages.py` (where blocks are), `copy_queue.py` (order and lifetimes), `card.py` (CUDA) and
`kernels.py` (the copy itself).
"""
