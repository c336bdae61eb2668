"""What the router knows of its workers as a whole: snapshots, sums, liveness, quarantined prompts.

Everything here is computed from worker rows and may be imported by `tables.py` and above. Start
with `snapshots.py`, which placement reads.
"""
