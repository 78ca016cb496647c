"""The shape of every error."""

from typing import Annotated, Any, TypedDict

from agent.api.shapes.schema import Schema


class ErrorDetailShape(TypedDict):
    """What went wrong."""

    code: Annotated[str, Schema(pattern=r"^plimsoll\.[a-z0-9_.]+$"), "stable: what a program matches"]
    message: Annotated[str, "one sentence that an operator can act on"]
    details: dict[str, Any]


class ErrorShape(TypedDict):
    """Every error has this shape."""

    error: ErrorDetailShape
