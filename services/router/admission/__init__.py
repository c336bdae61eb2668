"""Who may come in, and who is served next. `admit.py` puts the parts together for `core_requests`;
every other file is one rule, pure or with its own small bounded state."""
