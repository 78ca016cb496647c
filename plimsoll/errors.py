"""The errors of the package, as a tree.

    PlimsollError
    ├── InvalidRequest     the request is malformed, or contradicts what is there
    ├── Forbidden          this user may not do that, or may not open the socket
    ├── NotFound           the host knows no such consumer, provider, migration or unit
    ├── Refused            a claim or a reshape was not granted; `shortfalls` says what is lacking where
    │   └── Closed         the host takes no claims now
    ├── Conflict           another claim or another writer is in the way
    ├── AgentFailed        the agent could not do it: its driver, its disk or Placement failed
    ├── Unavailable        no agent answers, or it cannot work at the moment: a retry may help
    ├── BadAnswer          what answered is no agent, or its answer is cut
    │   └── Incompatible   an answer lacks a field: the agent is of another version
    └── OutcomeUnknown     the agent may have executed the write or not; repeat it with `key`

An agent answers with a code and an HTTP status, and the class follows from those. The message is the agent's
own sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.shapes import Shortfall


class PlimsollError(Exception):
    """Base of all errors.

    `code` is the agent's (`plimsoll.claim.does_not_fit`), empty where no agent answered, and `status` the
    HTTP status, 0 then. `details` is what the agent says beside its sentence. `key` is that of the write that
    failed: the uuid of the consumer or of the migration, or the name that the claim is for; empty for others.
    `repeated`: an earlier try of the same call may have been executed. `done`: the agent answered that the
    write was executed, and what it answered cannot be read.
    """

    repeated = done = False

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        status: int = 0,
        details: Mapping[str, Any] | None = None,
        key: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.details: Mapping[str, Any] = details or {}
        self.key = key

    def __str__(self) -> str:
        return self.message


class InvalidRequest(PlimsollError):
    """The request is malformed, or contradicts what is there."""


class Forbidden(PlimsollError):
    """This user's role does not allow the request, or this user may not open the socket."""


class NotFound(PlimsollError):
    """The host knows no such consumer, provider, migration or unit."""


class Refused(PlimsollError):
    """A claim or a reshape was not granted."""

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        """What the request asks for and the host does not have; empty where the reason is another one."""
        from plimsoll import shapes
        from plimsoll.values import decode

        records = self.details.get("shortfalls")
        records = records if isinstance(records, list) else ()
        return tuple(decode(shapes.Shortfall, record) for record in records)


class Closed(Refused):
    """The host takes no claims now: an operator paused it, or the agent does not know it well enough."""


class Conflict(PlimsollError):
    """Another claim or another writer is in the way."""


class AgentFailed(PlimsollError):
    """The agent could not do it: its driver, its disk or Placement failed."""


class Unavailable(PlimsollError):
    """No agent answers, or it cannot work at the moment; nothing is done."""


class BadAnswer(PlimsollError):
    """What answered is no agent, or its answer is cut."""


class Incompatible(BadAnswer):
    """An answer lacks `field`. `agent_version` is empty where the agent does not say its version."""

    def __init__(self, field: str, agent_version: str, client_version: str) -> None:
        super().__init__(
            f"The agent's answer lacks {field}: the agent is of version {agent_version or 'unknown'}, and "
            f"this client of version {client_version}; install those of one version."
        )
        self.field = field
        self.agent_version = agent_version
        self.client_version = client_version


class OutcomeUnknown(PlimsollError):
    """The agent may have executed the write or not.

    The same call with the same `key` has the same outcome whether the first was executed or not: it never
    claims twice.
    """


_BY_CODE = {
    "plimsoll.claim.closed": Closed,
    "plimsoll.claim.paused": Closed,
    "plimsoll.claim.conflict": Conflict,
    "plimsoll.reshape.refused": Refused,
    "plimsoll.placement.full": Refused,
    "plimsoll.state.unknown": OutcomeUnknown,
}
_BY_STATUS = {
    400: InvalidRequest,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    408: Unavailable,
    409: Conflict,
    410: NotFound,
    411: InvalidRequest,
    413: InvalidRequest,
    415: InvalidRequest,
    503: Unavailable,
}


def error_of(status: int, answer: Any) -> PlimsollError:
    """The error in the JSON of an answer with this status."""
    body = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(body, dict):
        return BadAnswer(
            f"the agent answered with an error that it did not explain: {answer!r}", status=status
        )
    code, details = str(body.get("code")), body.get("details")
    kind = _BY_CODE.get(code) or (
        Refused if code.startswith("plimsoll.claim.") else _BY_STATUS.get(status, AgentFailed)
    )
    return kind(
        str(body.get("message")),
        code=code,
        status=status,
        details=details if isinstance(details, dict) else None,
    )
