"""What carries a Placement API call: HTTP to an OpenStack Placement, or a call into the embedded core.

Only the transports know which it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the Placement API; `body` is parsed JSON (None if empty), header names are lower-case."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """One method, so that a test can pass a function's worth of code instead of patching."""

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request. Raises PlacementUnavailable if no answer came; every answer is a Reply."""

    def close(self) -> None:
        """Let go of connections or files; idempotent."""
