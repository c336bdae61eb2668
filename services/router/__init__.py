"""The router: one process that admits, queues and places every request and watches the fleet.

Start reading at `core.py` (events in, actions out), then `rules/`. `daemon.py` is the shell with
the sockets and the clock. The order in which rooms may import each other is the `layers` contract
"router rooms" in `pyproject.toml`; no other service imports the router.
"""
