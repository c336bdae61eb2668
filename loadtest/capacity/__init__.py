"""What a fleet can do, answered by the production router core over modelled workers.

`run` plays open-loop arrivals (`workload`) against `services.router.core` in virtual time, with a
worker model made of a few measured numbers (`profile`), and returns a `Report`. `overload` asks the
same at multiples of the fleet's capacity. No faults: those are tests/simulation.
"""
