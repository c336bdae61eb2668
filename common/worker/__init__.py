"""The shell around a worker's core, the same for prefill and decode workers.

`services/prefill` and `services/decode` import it, and `services/pool` what it has in common with
them: its links to routers and its log of the KV plane. Start with `daemon.py`, then `actions.py`.
"""
