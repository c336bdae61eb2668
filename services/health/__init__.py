"""The health daemon, one per host: probes, canaries, verdicts, alerts, metrics and the dashboard.

Start reading at `daemon.py` (one round), then `verdicts/`. No other service imports it.
"""
