"""The whole host, from the agent's memory: `GET /v1/overview`."""

from typing import Annotated, TypedDict

from agent.api.shapes.audit import FindingShape
from agent.api.shapes.instances import InstanceShape
from agent.api.shapes.moves import MoveShape
from agent.api.shapes.schema import Count, Moment
from agent.api.shapes.status import HealthShape, StatusShape
from agent.api.shapes.tree import ResourceProviderShape


class OverviewShape(TypedDict):
    """The whole host as the agent knows it; the agent asks neither the hypervisor nor Placement."""

    at: Moment
    status: StatusShape
    health: HealthShape
    resource_providers: Annotated[list[ResourceProviderShape], "depth first, each parent before its children"]
    instances: list[InstanceShape]
    moves: Annotated[list[MoveShape], "those under way"]
    findings: Annotated[list[FindingShape], "of the last audit, without those that were healed"]
    pending: Annotated[Count, "releases, intents of unknown outcome and ends of moves that wait"]
    reshape_pending: Annotated[str | None, "why a due reshape was not done"]
