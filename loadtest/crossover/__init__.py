"""`baton bench crossover`: from which concurrency on does disaggregation pay?

The same number of workers behind the same router, replicated and disaggregated (and one worker
alone, for scale), under closed loops of rising concurrency. Runs are interleaved, so that a slow
minute of the machine affects all. `ratio.py` computes the ratio within a repeat and its confidence
interval over the repeats, `recommendation.py` the sentence that follows. Start with `command.py`.
Only `loadtest.main` imports this room.
"""
