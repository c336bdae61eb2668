"""A real fleet for tests: `baton up` as a user runs it, in a folder and on ports of its own."""
