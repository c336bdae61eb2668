"""The store: KV of whole blocks in host memory, and on disk, below one worker's engine.

`table.py` decides, without I/O, which blocks a tier holds and in which slots; `arena.py` is the
memory of the slots; `side.py` copies between the arena and the engine's blocks on the KV thread.
On disk a block is a `record.py` in `segments.py`, which `disk.py` reads and writes on a thread. The
service's thread and vLLM's connector import it. Start with `table.py`.
"""
