"""The adapter to vLLM: arguments, start, requests, sampling, KV events, and failures to start.

Only `open.py` of the room above imports it, if the configuration names vLLM, and the connector.
Start with `engine.py`.
"""
