"""A pass and an audit that were asked for: `POST /v1/look`."""

from typing import TypedDict

from agent.api.shapes.audit import AuditShape
from agent.api.shapes.status import StatusShape


class LookShape(TypedDict):
    """The agent's state after the pass, and what the audit found."""

    status: StatusShape
    audit: AuditShape
