"""HTTP: the server, its routes, its limits on connections and requests, TLS.

This room alone imports aiohttp, and only the daemon imports it. Start with `server.py`; `app.py` is
the port through which handlers reach the rest of the gateway.
"""
