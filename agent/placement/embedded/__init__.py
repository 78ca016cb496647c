"""The embedded Placement core: a complete OpenStack Placement in one process, kept in SQLite or PostgreSQL.

It imports nothing of the rest of the agent but the ground, `agent.durable`, `agent.http`, and two pure
modules beside it: `agent.placement.knapsack` and `agent.placement.slot_search`.
From the outside in: core.py (the function call and the routes), handlers.py (the API), validation.py (the
parameters and bodies), candidates.py (the query of candidates), rules.py (what a write may do), model.py
(the state in memory), store.py (the state on disk, in SQLite), postgres.py (the same in PostgreSQL);
serve.py serves it to other clients.

Source: https://docs.openstack.org/api-ref/placement/. docs/placement-differences.md lists what differs.
"""

from agent.durable.errors import DatabaseError
from agent.placement.embedded.core import Core
from agent.placement.embedded.handlers import CoreResponse

__all__ = ["Core", "CoreResponse", "DatabaseError"]
