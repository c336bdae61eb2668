"""The health daemon's `/metrics`: its own, and those of all daemons of the host on one page.

Only the daemon imports this room. Start with `merge.py`.
"""
