"""`baton keygen`: the keys by which hosts know each other. Start with `main.py`."""
