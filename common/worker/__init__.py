"""The shell around a worker's core, the same for prefill and decode workers.

Only `services/prefill` and `services/decode` import it. Start with `daemon.py`, then `actions.py`.
"""
