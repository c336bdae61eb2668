"""The embedded model, which is generated from a fixed seed, and the search for a model's files.

Engines and gateways import it. Start with `resolve.py`.
"""
