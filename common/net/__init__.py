"""ZeroMQ: sockets, the table of endpoints, encoding and decoding of messages, the admin client.

Only `sockets.py` imports zmq. Every daemon imports this room. Start with `endpoints.py`.
"""
