"""vLLM's serving classes with the whole fleet as their engine. Importing it costs seconds and 600
MiB.

Only `full_api/lazy.py` and the process that compiles grammars import it, when it is first needed.
Start with `serving.py`.
"""
