"""What an audit finds: `/v1/audit`."""

from collections.abc import Iterable
from typing import Annotated, Any, TypedDict

from agent.api.shapes.schema import Values


def _kinds() -> Iterable[str]:
    from agent.audit.findings import KIND_NAMES

    return KIND_NAMES


class FindingShape(TypedDict):
    """A difference between the host, the claims and Placement."""

    kind: Annotated[str, Values(_kinds)]
    subject: Annotated[str, "a consumer, a provider or a device"]
    reason: str
    evidence: Annotated[dict[str, Any], "what the host, the agent and Placement each say"]
    own: Annotated[bool, "true: provably this agent's to heal"]
    repair: Annotated[
        list[str], "the operations in their order; empty: the agent can only report the finding"
    ]
    healed: bool
    failed: Annotated[str | None, "why the repair was not done"]


class AuditShape(TypedDict):
    """The findings of an audit."""

    findings: list[FindingShape]
