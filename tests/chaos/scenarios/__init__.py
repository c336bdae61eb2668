"""One function for each promise under test; each opens a fleet, breaks it, and returns its rows."""
