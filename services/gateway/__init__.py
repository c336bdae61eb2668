"""The gateway: an OpenAI-compatible HTTP server in front of the fleet, N processes on one port.

Start reading at `requests/core.py` (what a gateway decides), then `http/server.py` (what a client
meets); `daemon.py` is the shell that joins them. The order in which rooms may import each other is
the `layers` contract "gateway-rooms" in `pyproject.toml`; no other service imports the gateway.
"""
