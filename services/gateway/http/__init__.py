"""HTTP: the server, its routes, its limits on connections and requests, TLS.

Beside the routes of `jobs`, this room alone imports aiohttp, and only these and the daemon import
it. Start with `server.py`; `app.py` is
the port through which handlers reach the rest of the gateway.
"""
