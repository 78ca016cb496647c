"""The errors of the agent, as a tree.

    PlimsollError
    ├── UsageError               a request is malformed
    ├── SettingsError            the configuration cannot be used; the running one stays in force
    ├── IdentityError            the host's uuid is missing, ambiguous or another host's
    ├── StateError               the agent's own database cannot be used
    │   └── StateUnknown         it did not answer a write: the write may be done or not
    ├── ApplyError               a plan stopped at one operation
    ├── TreeError                the providers do not form a tree (a ValueError too)
    ├── DriverError
    │   ├── DriverUnavailable    the hypervisor did not answer; that alone changes nothing
    │   └── DriverDataError      the hypervisor's answer makes no sense
    ├── PlacementError           Placement refused the request, and a retry does not help
    │   ├── PlacementUnavailable Placement did not answer; a retry may help
    │   ├── PlacementConflict    another client wrote in between (placement.concurrent_update)
    │   └── PlacementFull        the providers do not have the resources
    ├── Refused                  a claim was not granted
    │   ├── DoesNotFit           `shortfalls` names what was requested, what is free, and where
    │   ├── ClaimsClosed         the agent's inventory may be wrong at the moment
    │   └── ClaimConflict        the consumer already has, or is getting, another claim
    ├── ReshapeRefused           inventory cannot move together with its allocations; `reasons`
    ├── ImportRefused            the target Placement contradicts the export; `conflicts`
    ├── UnknownConsumer          the host knows no such consumer
    ├── HistoryGap               the history no longer has the event after which events were asked for
    ├── Forbidden                the caller's role does not allow the request
    └── DaemonUnreachable        no agent answers at the socket

Each class has a stable `code` for programs, the `http_status` of the local API and the `exit_code` of the
command line. Each message is a sentence that an operator can act on; `counted` and `plain` word it.
"""

import errno
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DRIFT_FOUND = 3
    DRIFT_HEALED = 4
    REFUSED = 5
    UNREACHABLE = 6
    NEVER = 7


_LONG_WORD = re.compile(r"(\S{200})\S{60,}")
_LONG_QUOTE = re.compile(r"""(?<!\w)((['"])(?:(?!\2).){200})(?:(?!\2).){60,}(?=\2(?!\w))""", re.DOTALL)


class PlimsollError(Exception):
    """Base of all errors; `details` is JSON-ready and part of the API's response.

    A message may repeat what a caller sent: of a word, or of a text in quotes, that is longer than any name,
    the beginning is enough.
    """

    code: ClassVar[str] = "plimsoll.failed"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, **details: Any) -> None:
        message = _LONG_QUOTE.sub(r"\1...", _LONG_WORD.sub(r"\1...", message))
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, Any] = details


class UsageError(PlimsollError):
    """A request is malformed."""

    code = "plimsoll.usage"
    http_status = 400
    exit_code = ExitCode.USAGE


class SettingsError(PlimsollError):
    """The configuration cannot be used."""

    code = "plimsoll.settings"
    http_status = 400
    exit_code = ExitCode.USAGE


class IdentityError(PlimsollError):
    """The host's uuid is missing, ambiguous or another host's."""

    code = "plimsoll.identity"


class AnotherWriter(IdentityError):
    """Another agent writes to Placement as this host."""

    code = "plimsoll.another_writer"
    http_status = 409


class ForeignOwner(PlimsollError):
    """Another service owns the host's root provider in Placement."""

    code = "plimsoll.owner"
    http_status = 409


class StateError(PlimsollError):
    """The agent's own database or files cannot be used."""

    code = "plimsoll.state"


class StateUnknown(StateError):
    """The agent's own database did not answer a write: the agent cannot know whether it is done.

    The agent decides nothing more, until the disk answers and the agent has read back what it holds.
    """

    code = "plimsoll.state.unknown"
    http_status = 503


class ApplyError(PlimsollError):
    """A plan stopped at one operation; the next pass continues."""

    code = "plimsoll.apply"
    http_status = 502


class TreeError(PlimsollError, ValueError):
    """The providers do not form a tree."""

    code = "plimsoll.tree"


class DriverError(PlimsollError):
    """The driver failed."""

    code = "plimsoll.driver"
    http_status = 502


class DriverUnavailable(DriverError):
    """The hypervisor did not answer."""

    code = "plimsoll.driver.unavailable"
    http_status = 503


class DriverSlow(DriverUnavailable):
    """The hypervisor is there, and did not answer a call in time: it may be busy."""

    code = "plimsoll.driver.slow"


class DriverDataError(DriverError):
    """The hypervisor's answer makes no sense."""

    code = "plimsoll.driver.data"


class PlacementError(PlimsollError):
    """Placement refused a request; `status` and `placement_code` (`placement.undefined_code`) are its own."""

    code = "plimsoll.placement"
    http_status = 502

    def __init__(self, message: str, *, status: int = 0, placement_code: str = "", **details: Any) -> None:
        super().__init__(message, status=status, placement_code=placement_code, **details)
        self.status = status
        self.placement_code = placement_code


class PlacementUnavailable(PlacementError):
    """Placement did not answer, or answered that it cannot work now.

    `sent`: the request may have reached Placement, so the outcome of a write may be unknown.
    """

    code = "plimsoll.placement.unavailable"
    http_status = 503

    def __init__(self, message: str, *, sent: bool = True, **details: Any) -> None:
        super().__init__(message, **details)
        self.sent = sent


class PlacementConflict(PlacementError):
    """Another client wrote in between."""

    code = "plimsoll.placement.conflict"
    http_status = 409


class PlacementFull(PlacementError):
    """The providers do not have the resources."""

    code = "plimsoll.placement.full"
    http_status = 409


class Refused(PlimsollError):
    """A claim was not granted."""

    code = "plimsoll.claim.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class DoesNotFit(Refused):
    """The resources are not free. `shortfalls` is [{resource_class, asked, free, provider, provider_uuid,
    reason}, ...]."""

    code = "plimsoll.claim.does_not_fit"

    @property
    def providers(self) -> set[str]:
        """The uuids of the providers that lack something; "" for what no provider has."""
        return {shortfall["provider_uuid"] for shortfall in self.details["shortfalls"]}


class ClaimsClosed(Refused):
    """The agent takes no claims at the moment."""

    code = "plimsoll.claim.closed"
    http_status = 503


class HostPaused(ClaimsClosed):
    """An operator has paused the host. The gate refuses guests then, also with `unanswered = allow`."""

    code = "plimsoll.claim.paused"
    http_status = 409


class ClaimConflict(Refused):
    """The consumer already has, or is getting, another claim."""

    code = "plimsoll.claim.conflict"


class DeviceUnfit(Refused):
    """A guest would hang or fail at its start with a PCI device that its domain names."""

    code = "plimsoll.claim.device"


class GuestRuns(Refused):
    """The claim is that of a guest that runs on this host. `offered` and `reserved` are {class: amount}."""

    code = "plimsoll.claim.guest_runs"


class ReshapeRefused(PlimsollError):
    """Inventory cannot move together with its allocations; `reasons` has sentences."""

    code = "plimsoll.reshape.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class ImportRefused(PlimsollError):
    """The target Placement contradicts the export; `conflicts` has sentences."""

    code = "plimsoll.import.refused"
    http_status = 409
    exit_code = ExitCode.REFUSED


class UnknownConsumer(PlimsollError):
    """The host knows no such consumer, provider, migration or unit."""

    code = "plimsoll.consumer.unknown"
    http_status = 404


class HistoryGap(PlimsollError):
    """The history does not have the event after which events were asked for: some may be missing."""

    code = "plimsoll.history.gap"
    http_status = 410


class Forbidden(PlimsollError):
    """The caller's role does not allow the request."""

    code = "plimsoll.forbidden"
    http_status = 403


class RequestExpired(PlimsollError):
    """The caller of a request waits for its answer no longer; nothing was begun."""

    code = "plimsoll.api.expired"
    http_status = 408


class DaemonUnreachable(PlimsollError):
    """No agent answers at the socket."""

    code = "plimsoll.daemon.unreachable"
    http_status = 503
    exit_code = ExitCode.UNREACHABLE


NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
LACK_OF_DESCRIPTORS = "the agent has no file descriptor left"
MORE_DESCRIPTORS = (
    "raise LimitNOFILE of the service (`systemctl edit plimsoll-agent`), or `ulimit -n` where it is started "
    "by hand"
)


def counted(number: int, one: str, many: str = "") -> str:
    """The number with its noun, or with all words that depend on it: (2, "guest runs", "guests run").

    `many` is `one` with an s where it is not given.
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def by_force(consumer: str) -> str:
    """How to release the consumer's claim where its guest runs, behind the advice to release it."""
    return f"(`plimsoll release {consumer} --force` where its guest runs)"


def first_few(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first texts, and how many more there are: "a, b and 3 more", or with "; " "a; b; and 3 more"."""
    more = f"{between.strip(', ')} and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def plain(text: object) -> str:
    """The text with unprintable characters spelt out, such as terminal escapes in the name of a guest."""
    word = str(text)
    if word.isprintable():
        return word
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)
