"""Silent degradation: every answer is right, but disaggregation does not do its work.

The detector is pure and knows no table; the rules feed it. Start with `detector.py`.
"""
