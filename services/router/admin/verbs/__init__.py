"""The verbs of the admin socket, one file each: a function from a view of the router to an answer.

Only `registry.py`, the metrics and tests import them. Start with `drain.py`.
"""
