"""The embedded placement core: a complete OpenStack Placement inside one process, durable in one SQLite file.

It imports nothing of the rest of the agent. From the outside in: core.py (the function call), routes.py and
handlers/ (the API), rules/ (what a write may do), draft.py and model.py (the state in memory), store.py and
journal.py (the same on disk), sqlitefile.py (a durable SQLite file, of use to others too).
"""

from agent.durable.errors import DatabaseError
from agent.placement.embedded.core import Core
from agent.placement.embedded.messages import CoreResponse

__all__ = ["Core", "CoreResponse", "DatabaseError"]
