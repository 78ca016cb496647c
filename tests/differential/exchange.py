"""What one side is asked and what it answers, in a form both sides share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Request:
    """One Placement API request. `path` carries the query string, `body` is JSON in memory.

    `text` is a body as text, for what is no JSON; only a side that is asked through WSGI can take it.
    """

    method: str
    path: str
    body: Any = None
    microversion: str | None = "1.39"
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None

    def __str__(self) -> str:
        text = f"{self.method} {self.path} @{self.microversion}"
        if self.headers:
            text += f" {dict(self.headers)}"
        if self.text is not None:
            text += f" {self.text!r}"
        return text if self.body is None else f"{text}\n    {json.dumps(self.body)}"


@dataclass(frozen=True)
class Answer:
    """Status, lower-case headers, and the body as JSON in memory (None when empty)."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Side(Protocol):
    """A Placement that can be asked."""

    def ask(self, request: Request) -> Answer:
        """Answer one request."""
