"""Plimsoll for programs: the agent of a host, in Python.

    import plimsoll

    with plimsoll.Agent() as agent:
        with agent.claim(name="web1", resources={"VCPU": 2, "MEMORY_MB": 512}) as claim:
            start_guest(claim)

`AsyncAgent` is the same for programs with an event loop, and `Placement` the core behind an agent. What the
agent answers are the frozen dataclasses of `plimsoll.shapes`, and what it refuses are the errors below
`PlimsollError`.
"""

from plimsoll.agent import Agent
from plimsoll.async_agent import AsyncAgent
from plimsoll.errors import (
    AgentFailed,
    BadAnswer,
    Closed,
    Conflict,
    Forbidden,
    Incompatible,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PlimsollError,
    Refused,
    Unavailable,
)
from plimsoll.placement import Placement
from plimsoll.values import Gap
from plimsoll.version import __version__

__all__ = [
    "Agent",
    "AgentFailed",
    "AsyncAgent",
    "BadAnswer",
    "Closed",
    "Conflict",
    "Forbidden",
    "Gap",
    "Incompatible",
    "InvalidRequest",
    "NotFound",
    "OutcomeUnknown",
    "Placement",
    "PlimsollError",
    "Refused",
    "Unavailable",
    "__version__",
]
