"""From what was measured on this host to a verdict on it and on each of its workers.

`canaries.py`, `host_verdict.py` and `worker_verdicts.py` are pure; `probes.py` measures. The
daemon, the metrics and the dashboard import this room.
"""
