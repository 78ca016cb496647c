"""The operations of the local API. `agent.api.local_operations` implements them; tests may as well."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from agent.audit.auditor import AuditReport
from agent.claims.capacity import Capacity, Defrag
from agent.claims.claim import Claim, Fit
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.request import ClaimRequest
from agent.driver import Guest
from agent.errors import Refused
from agent.gate.decision import GateVerdict, HookCall
from agent.moves.circumstances import Circumstances
from agent.moves.states import Move, MoveKind
from agent.providers.plan import Plan
from agent.reconcile.reshape_preview import Preview
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.state.cordon import Cordon
from agent.state.pause import Pause, PauseRequest
from agent.status.host_status import HostStatus
from agent.tracker.cordons import OfferedDevice
from agent.tree import ProviderTree


class WrittenDomain(NamedTuple):
    """A domain with everything that its claim gave; `made`: the claim was made for it just now."""

    claim: Claim
    xml: str
    made: bool = False


class Operations(Protocol):
    """Each method may raise PlimsollError, whose message is a sentence. No method blocks without a bound."""

    @property
    def host_status(self) -> HostStatus:
        """The agent's status, from memory alone."""

    def status(self) -> dict[str, Any]:
        """The agent's state. Never raises.

        JSON-ready: {host, uuid, version, state: starting|ready|degraded|stopping, reasons: [sentence], since,
        driver: {name, ok, error}, placement: {kind, ok, error}, claims: {open, reason, count}, gate:
        {hook, in_effect, unanswered}, last_pass:
        {at, sentence, duration_ms}, next_try, findings, audited, pid}.
        """

    def tree(self) -> tuple[ProviderTree, Usages]:
        """The host's providers in Placement, and their usages. Raises PlacementError."""

    def providers(self) -> ProviderTree:
        """The providers that serve this host, from memory; empty before the first inventory."""

    def tree_warnings(self, tree: ProviderTree, usages: Usages) -> tuple[str, ...]:
        """Sentences on what the tree offers and the host does not have. Never raises."""

    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and their claims, in the order of uuids; one of the two may be None."""

    def device_profiles(self) -> DeviceProfiles:
        """The device profiles that a flavor may name."""

    def identified(self, request: ClaimRequest) -> AbstractContextManager[ClaimRequest]:
        """The request; without a consumer, for the instance of this host with its name, else for a new one.

        While claims of one name are under way, all of them have the same consumer. Raises UsageError where
        several instances have the name.
        """

    def claim(self, request: ClaimRequest) -> Claim:
        """Claim for a guest. Raises Refused (DoesNotFit, ClaimsClosed, ClaimConflict), PlacementError."""

    def explain(self, request: ClaimRequest) -> Fit:
        """What `claim` would do, without doing it; also while claims are closed."""

    def closed_reason(self) -> str | None:
        """Why the host takes no new claims now, as a clause; None: it takes them."""

    def capacity(self, request: ClaimRequest) -> Capacity:
        """How many guests that ask for this fit one after the other; also while claims are closed."""

    def defrag(self, request: ClaimRequest) -> Defrag:
        """The fewest moves of guests that make room for this one; nothing is moved."""

    def pause(self, asked: PauseRequest) -> Pause:
        """Take no new claims until `resume`; the pause from now on. Raises StateError."""

    def resume(self) -> None:
        """End the pause, if there is one. Raises StateError."""

    def devices(self) -> tuple[OfferedDevice, ...]:
        """The devices that the host offers, with who has them and which are withheld."""

    def cordon(self, cordon: Cordon) -> None:
        """Give the device to no guest that does not have it. Raises UsageError, StateError."""

    def clear_cordon(self, address: str) -> None:
        """Give the device to guests again. Raises UsageError where it is not withheld, StateError."""

    def claim_domain(self, xml: str, asked: ClaimRequest) -> WrittenDomain:
        """Claim what the domain's XML asks for, and what is `asked` for beside it; and complete the domain.

        The consumer is the domain's uuid; without one that of `asked`; if that is empty, as by `identified`
        for the domain's name. Raises
        UsageError where the XML is malformed, or the domain contradicts what is asked for, or its claim: then
        nothing is changed. Raises what `claim` raises.
        """

    def explain_domain(self, xml: str, asked: ClaimRequest) -> tuple[ClaimRequest, Fit]:
        """The request of `claim_domain`, and what it would do, without doing it."""

    def move_request(self, xml: str, asked: ClaimRequest) -> ClaimRequest:
        """The request for a guest that moves here: as `claim_domain`, on any devices, CPUs and cells."""

    def write_domain(self, consumer: str, xml: str, *, replace: bool) -> WrittenDomain:
        """The domain's XML with everything that the consumer's claim on this host gave; writes nothing.

        `replace`: what the domain has from a former place is written over. Raises UnknownConsumer; UsageError
        where the domain contradicts the claim; DriverDataError where the XML is malformed.
        """

    def check_release(self, consumer: str) -> None:
        """Raises GuestRuns where the consumer's guest runs on this host."""

    def release(self, consumer: str) -> bool:
        """Release a claim. Returns True if Placement has executed it, False if it is journaled for later.

        Raises UnknownConsumer.
        """

    def gate(self, call: HookCall) -> GateVerdict:
        """Decide whether a guest may start or go on.

        Raises Refused where it may not; UsageError, DriverError, PlacementError.
        """

    def claim_running(self) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        """Claim for the running guests that have no claim. Raises DriverError, PlacementError."""

    def circumstances(self) -> Circumstances:
        """What this host sees beside the records of its moves."""

    def moves(self) -> tuple[Move, ...]:
        """The host's moves that are under way or ended recently, oldest first."""

    def look_for_moves(self) -> None:
        """Read now what the agents of other hosts did: moves that began or ended there.

        Does nothing while Placement is known to be away. Does not raise PlacementError: what the look finds
        out, also that Placement does not answer, is in the status.
        """

    def provider_names(self, uuids: Collection[str]) -> Mapping[str, str]:
        """{uuid: name} of providers of any host, as far as the agent knows. Never raises."""

    def begin_move(self, kind: MoveKind, migration: str, request: ClaimRequest) -> Move:
        """Begin a move to this host. Raises Refused, UnknownConsumer, UsageError, PlacementError."""

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        """Confirm a move; its state is `confirming` while the write is journaled for later.

        `instance` may help to find it. Raises UnknownConsumer, ClaimConflict, PlacementError.
        """

    def revert_move(self, migration: str, instance: str | None) -> Move:
        """Revert a move; its state is `reverting` while the write is journaled for later.

        `instance` may help to find it. Raises UnknownConsumer, ClaimConflict, PlacementError.
        """

    def audit(self, *, heal: bool) -> AuditReport:
        """Compare the host, the claims and Placement; with `heal`, execute all repairs.

        Raises DriverError, PlacementError, StateError.
        """

    def look(self) -> AuditReport:
        """Run a pass and an audit at once; the audit repairs nothing.

        Raises DriverError, PlacementError, StateError.
        """

    def next_plan(self) -> Plan:
        """The changes that the next pass would make in Placement. Raises DriverError, PlacementError."""

    def preview_reshape(self, undo: str | None) -> Preview:
        """What `reshape` would do; writes nothing. Raises UsageError for an unknown receipt."""

    def reshape(self, undo: str | None) -> tuple[Receipt, ...]:
        """Do the due reshape, even if it was undone before; or undo the one with the receipt `undo`.

        Returns the receipts, none if there was nothing to do. Raises ReshapeRefused, UsageError,
        PlacementError.
        """

    def configuration(self) -> dict[str, Any]:
        """The settings in force, JSON-ready {group: {option: {value, origin}}}, with secrets masked."""
