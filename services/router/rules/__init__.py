"""The rules of the router: the only code that changes `Tables`, one file per subject.

Only `core.py` and other rules call them. Start with `submit.py` (a request arrives), then
`place_queue.py` (from the queue to the workers) and `attempt_lifecycle.py` (from there to its end).
"""
