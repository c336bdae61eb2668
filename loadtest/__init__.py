"""Load against a running fleet: trace replay, comparisons, planning. Empty so far; the benchmarks
that exist are in tests/bench (`make bench`)."""
