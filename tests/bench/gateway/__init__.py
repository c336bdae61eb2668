"""What a token and a request cost in the gateway process. See `table.py`."""
