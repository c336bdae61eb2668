"""From the headers of a request to the holder of an API key, or to a 401.

`caller.py` and `ring.py` are pure; `authenticator.py` reads the key file. Any room may import it.
"""
