"""The gateway's decisions: live requests, messages to router and workers, recovery.

This room is sans-IO; the daemon, `http/`, `links/` and the metrics import it. Start with `core.py`,
then `lifecycle.py` and `recovery.py`.
"""
