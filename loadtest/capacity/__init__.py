"""The capacity of a fleet, by the production router core over modelled workers in virtual time.

Start with `fleet.py`: it runs open-loop arrivals (`workload.py`) against `services.router.core`,
with workers that are modelled from a few measured numbers (`profile.py`), and returns a `Report`.
`overload.py` does so at multiples of the capacity. There are no faults here; those are in
tests/simulation. `plan` imports this room.
"""
