"""`baton rollout`: restarts workers one by one, drained first.

`core.py` decides and is sans-IO; `main.py` asks the router and runs the commands.
"""
