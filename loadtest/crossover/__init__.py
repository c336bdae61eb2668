"""`baton bench crossover`: from which concurrency on does disaggregation pay?

The same number of workers behind the same router, replicated and disaggregated (and one worker
alone, for scale), under closed loops of rising concurrency. Runs are interleaved, so that a slow
minute of the machine meets all; what counts is the ratio within a repeat, with its confidence
interval over the repeats (`ratio`), and one sentence that follows from them (`verdict`).
"""
