"""Every error the agent can answer with, as a tree.

    PlimsollError
    ├── UsageError               the caller asked for something malformed
    ├── SettingsError            the configuration cannot be used; the running one stays in force
    ├── IdentityError            this host's uuid is missing, doubled or somebody else's
    ├── StateError               the agent's own database cannot be used
    ├── ApplyError               a plan stopped at one operation
    ├── TreeError                providers that cannot stand together in one tree (a ValueError too)
    ├── DriverError
    │   ├── DriverUnavailable    the hypervisor did not answer; nothing is changed because of that
    │   └── DriverDataError      it answered with something that makes no sense
    ├── PlacementError           placement said no, and retrying will not help
    │   ├── PlacementUnavailable placement did not answer: a state, not the end
    │   ├── PlacementConflict    somebody wrote in between (placement.concurrent_update)
    │   └── PlacementFull        the resources are not there
    ├── Refused                  a claim was not granted
    │   ├── DoesNotFit           asked, free and provider stand in `shortfalls`
    │   ├── ClaimsClosed         the agent cannot vouch for its inventory just now
    │   └── ClaimConflict        the consumer already holds, or is getting, something else
    ├── ReshapeRefused           moved inventory cannot take its allocations along; `reasons`
    ├── ImportRefused            a placement does not take an export as it stands; `conflicts`
    ├── UnknownConsumer          nothing is known of that consumer
    ├── Forbidden                the caller's role does not allow it
    └── DaemonUnreachable        the command line found no agent at the socket

Each class carries a stable `code` (what a program matches), the `http_status` of the local API and the
`exit_code` of the command line; each message is a sentence an operator can act on.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The one table of exit codes, for every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DRIFT_FOUND = 3
    DRIFT_HEALED = 4
    REFUSED = 5
    UNREACHABLE = 6


class PlimsollError(Exception):
    """Base of all errors; `details` is JSON-ready and goes into the API's answer."""

    code: ClassVar[str] = "plimsoll.failed"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details


class UsageError(PlimsollError):
    code = "plimsoll.usage"
    http_status = 400
    exit_code = ExitCode.USAGE


class SettingsError(PlimsollError):
    code = "plimsoll.settings"
    http_status = 400
    exit_code = ExitCode.USAGE


class IdentityError(PlimsollError):
    code = "plimsoll.identity"


class StateError(PlimsollError):
    code = "plimsoll.state"


class ApplyError(PlimsollError):
    code = "plimsoll.apply"
    http_status = 502


class TreeError(PlimsollError, ValueError):
    code = "plimsoll.tree"


class DriverError(PlimsollError):
    code = "plimsoll.driver"
    http_status = 502


class DriverUnavailable(DriverError):
    code = "plimsoll.driver.unavailable"
    http_status = 503


class DriverDataError(DriverError):
    code = "plimsoll.driver.data"


class PlacementError(PlimsollError):
    """`status` and `placement_code` are placement's own (`placement.undefined_code`, ...)."""

    code = "plimsoll.placement"
    http_status = 502

    def __init__(self, message: str, *, status: int = 0, placement_code: str = "", **details: Any) -> None:
        super().__init__(message, status=status, placement_code=placement_code, **details)
        self.status = status
        self.placement_code = placement_code


class PlacementUnavailable(PlacementError):
    code = "plimsoll.placement.unavailable"
    http_status = 503


class PlacementConflict(PlacementError):
    code = "plimsoll.placement.conflict"
    http_status = 409


class PlacementFull(PlacementError):
    code = "plimsoll.placement.full"
    http_status = 409


class Refused(PlimsollError):
    code = "plimsoll.claim.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class DoesNotFit(Refused):
    """`shortfalls`: [{resource_class, asked, free, provider, provider_uuid, reason}, ...]."""

    code = "plimsoll.claim.does_not_fit"


class ClaimsClosed(Refused):
    code = "plimsoll.claim.closed"
    http_status = 503


class ClaimConflict(Refused):
    code = "plimsoll.claim.conflict"


class ReshapeRefused(PlimsollError):
    code = "plimsoll.reshape.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class ImportRefused(PlimsollError):
    code = "plimsoll.import.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class UnknownConsumer(PlimsollError):
    code = "plimsoll.consumer.unknown"
    http_status = 404


class Forbidden(PlimsollError):
    code = "plimsoll.forbidden"
    http_status = 403


class DaemonUnreachable(PlimsollError):
    code = "plimsoll.daemon.unreachable"
    http_status = 503
    exit_code = ExitCode.UNREACHABLE
