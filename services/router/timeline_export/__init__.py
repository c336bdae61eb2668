"""Where the records of ended requests go: a bounded file and OpenTelemetry spans.

This room does I/O; only the daemon imports it. Start with `sink.py`.
"""
