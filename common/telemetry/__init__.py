"""Logs, metrics and traces, the same for every daemon.

`buckets.py`, `rolling_p99.py` and `trace.py` are pure; `log.py` and `exposition.py` do I/O. Every
daemon imports this room. Start with `log.py`.
"""
