"""The decode worker: it receives KV, samples, and streams tokens straight to the gateways.

`core.py` decides and is sans-IO, with `grant_limit.py`, `late_reports.py` and `stream.py`;
`links.py` connects to the gateways' stream sockets. Only `services/worker.py` imports it and joins
it to the shell in `common.worker`. Start with `core.py`.
"""
