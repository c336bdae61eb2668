"""Where a request is placed: pure functions from snapshots of workers to a placement or a reason to
wait.

Nothing here knows the router's tables; the rules call it. Start with `place.py`; `policies/` holds
one policy per file, and `governor.py` decides between local and remote prefill.
"""
