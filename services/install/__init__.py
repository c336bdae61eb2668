"""`baton install-systemd`: lays down the units and what they need. Start with `main.py`."""
