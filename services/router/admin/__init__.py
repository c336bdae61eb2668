"""The admin socket: one verb per file in `verbs/`, listed in `registry.py`.

Verbs read the tables and order changes as events into the core. The daemon and the metrics import
this room. Start with `verb.py`, which defines a verb, then `answer.py`.
"""
