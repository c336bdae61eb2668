"""The shell around a worker's core, the same for prefill and decode workers.

`services/worker.py` makes it with the cores of `services/prefill` and `services/decode`.
`services/pool` imports what it has in common: the links to routers and the log of the KV plane.
Start with `daemon.py`, then `actions.py`.
"""
