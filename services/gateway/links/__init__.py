"""The gateway's ZeroMQ links: to its routers, and from the decode workers that stream to it.

Only the daemon imports this room. Start with `router.py`.
"""
