"""The router's metrics: the answers of its admin verbs as Prometheus families.

Only the daemon imports this room; it reads the admin verbs and changes nothing. Start with
`router.py`.
"""
