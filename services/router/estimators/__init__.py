"""What the router learns from reports: each estimator is pure, bounded, and starts from a prior.

`Estimates` (`estimates.py`) holds them all; `Tables.estimates` is the one instance. Admission, the
cost policy and the governor read it, only `core_requests` feeds it.
"""
