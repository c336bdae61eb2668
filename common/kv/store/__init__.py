"""The store: KV of whole blocks in host memory and on disk, below a worker's engine or in a pool.

`table.py` decides, without I/O, which blocks a tier holds and in which slots; `arena.py` is the
memory of the slots; `side.py` copies between the arena and the engine's blocks on the KV thread.
On disk a block is a `record.py` in `segments.py`, which `disk.py` reads and writes on a thread.
`disk_plan.py` decides what goes there; `promotions.py` brings it back to memory, for others. The
service's thread, vLLM's connector and pools import it. Start with `table.py`.
"""
