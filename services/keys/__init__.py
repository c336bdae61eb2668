"""`baton keys`: API keys in the key file. Everything is in `main.py`."""
