"""What a worker gives beside the prompts that it computes for others: the KV of streams that it
gave up (`kept_streams.py`), and the blocks of its store (`pulls.py`). And what its store gets of
other workers' blocks, because they offer them (`copies.py`) or ahead of need (`prefetches.py`).

The service's thread drives both on top of `sides/`.
"""
