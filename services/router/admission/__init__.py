"""The parts of admission, each a pure rule: prediction, gates, limits of keys, retry budget.

`rules/admit.py` puts them together; nothing here knows the router's tables. Start with
`predict.py`.
"""
