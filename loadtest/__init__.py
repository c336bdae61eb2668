"""Load and what follows from it. `capacity` answers what a fleet can do, in virtual time; the
benchmarks of real daemons are in tests/bench (`make bench`)."""
