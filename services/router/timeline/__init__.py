"""Where requests spent their time: one record for each that is over, and which of them are kept.

This room is sans-IO; the tables, the rules and the admin verbs import it. Start with `record.py`.
"""
