"""What the router learns from reports: each estimator is pure, bounded, and starts from a prior.

The cost policy, admission and the governor read `estimates.py`; the rules alone feed it, through
`learning.py`. Start with `estimates.py`.
"""
