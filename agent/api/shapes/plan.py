"""What the next pass would change in Placement: `GET /v1/plan`."""

from typing import Annotated, Any, TypedDict

from agent.api.shapes.schema import Schema

PlanOperation = Annotated[
    dict[str, Any],
    Schema(properties={"operation": {"type": "string"}}, required=["operation"]),
    "`operation` is the kind: create_provider, put_inventories and others, each with further keys of its own",
]


class PlanShape(TypedDict):
    """The operations of the next pass."""

    operations: Annotated[list[PlanOperation], "in their order"]
    lines: Annotated[list[str], "the operations for people"]
