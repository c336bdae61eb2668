"""The tables of the router core: all its state. Only the rules change it.

Each model has tables of its own (`tables.py`): its workers, its attempts, its queue, and all that
is measured and learned of them. A rule is given the tables of one model, so that nothing of one
model can reach another. What the models share is in `shared.py`. Start with `tables.py`.
"""

from services.router.tables.shared import RefusedWorker, SharedTables
from services.router.tables.tables import Tables

__all__ = ["RefusedWorker", "SharedTables", "Tables"]
