"""How a daemon lives: its tasks, its shutdown, its supervisor, files that it reads again.

Every daemon imports this room. Start with `lifecycle.py`.
"""
