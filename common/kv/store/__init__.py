"""The store: KV of whole blocks in host memory below one worker's engine.

`table.py` decides, without I/O, which blocks are held and in which slots; `arena.py` is the memory
of the slots; `side.py` copies between the arena and the engine's blocks on the KV thread. The
service's thread and vLLM's connector import it. Start with `table.py`.
"""
