"""Breaks real daemons under load, proves that each fault took effect, and counts what was lost."""
