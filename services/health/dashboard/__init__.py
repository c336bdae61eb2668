"""The dashboard, the pages of the health daemon, and what they show of the fleet.

Only the daemon imports this room. Start with `pages.py`; `web/` is what a browser gets.
"""
