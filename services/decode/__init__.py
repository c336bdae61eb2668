"""The decode worker: it receives KV, samples, and streams tokens straight to the gateways.

`core.py` decides and is sans-IO, with `grant_limit.py` and `late_reports.py`; `daemon.py` joins it
to the shell in `common.worker`; `links.py` connects to the gateways' stream sockets. Only the
command line imports it. Start with `core.py`.
"""
