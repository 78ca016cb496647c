"""What the local API may ask of the running agent; the service implements it, tests may too."""

from typing import Any, Protocol

from agent.audit.auditor import AuditReport
from agent.claims.claim import Claim, Fit
from agent.claims.parse_request import ClaimRequest
from agent.driver import Guest
from agent.errors import Refused
from agent.gate.decision import GateVerdict, HookCall
from agent.moves.states import Move, MoveKind
from agent.providers.plan import Plan
from agent.reconcile.reshape_preview import Preview
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.status.host_status import HostStatus
from agent.tree import ProviderTree


class Operations(Protocol):
    """Each method raises PlimsollError with a sentence; none blocks without a bound."""

    @property
    def host_status(self) -> HostStatus:
        """The agent's status, from memory alone."""

    def status(self) -> dict[str, Any]:
        """JSON-ready: {host, uuid, version, state: starting|ready|degraded|stopping, reasons: [sentence],
        since, driver: {name, ok, error}, placement: {kind, ok, error}, claims: {open, reason, count},
        last_pass: {at, sentence, duration_ms}, pid}. Never raises."""

    def tree(self) -> tuple[ProviderTree, Usages]:
        """What placement holds for this host."""

    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and claims side by side, by uuid; one of the two may be missing."""

    def claim(self, request: ClaimRequest) -> Claim:
        """Raises Refused (DoesNotFit, ClaimsClosed, ClaimConflict), PlacementError."""

    def explain(self, request: ClaimRequest) -> Fit:
        """What `claim` would do, without doing it; also while claims are closed."""

    def release(self, consumer: str) -> bool:
        """True: gone from placement; False: journaled, will be delivered. Raises UnknownConsumer."""

    def gate(self, call: HookCall) -> GateVerdict:
        """Whether the guest may go on. Raises Refused where not; UsageError, DriverError, PlacementError."""

    def claim_running(self) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        """Claim for the guests that run without a claim. Raises DriverError, PlacementError."""

    def moves(self) -> tuple[Move, ...]:
        """Those under way that this host is part of, and those that ended lately; the oldest first."""

    def begin_move(self, kind: MoveKind, migration: str, request: ClaimRequest) -> Move:
        """Begin a move to this host. Raises Refused, UnknownConsumer, UsageError, PlacementError."""

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        """Confirmed, or `confirming`: journaled. Raises UnknownConsumer, ClaimConflict, PlacementError."""

    def revert_move(self, migration: str, instance: str | None) -> Move:
        """Reverted, or `reverting`: journaled. Raises UnknownConsumer, ClaimConflict, PlacementError."""

    def audit(self, *, heal: bool) -> AuditReport:
        """What differs between the host, the claims and placement; `heal` executes every repair there is.

        Raises DriverError, PlacementError, StateError.
        """

    def next_plan(self) -> Plan:
        """What the next pass would change in placement."""

    def preview_reshape(self, undo: str | None) -> Preview:
        """What `reshape` would do; nothing is written. Raises UsageError for an unknown receipt."""

    def reshape(self, undo: str | None) -> tuple[Receipt, ...]:
        """Do the reshape that is due, also one that was undone, or undo the one with that receipt.

        The receipts of what was done, none if there was nothing to do. Raises ReshapeRefused, UsageError,
        PlacementError.
        """

    def configuration(self) -> dict[str, Any]:
        """JSON-ready {group: {option: {value, origin}}}, secrets masked."""
