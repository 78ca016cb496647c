"""The operations of the local API, carried out by the running agent."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from agent import errors, log
from agent.audit.auditor import Auditor, AuditReport
from agent.claims.capacity import Capacity, Defrag
from agent.claims.claim import Claim, ClaimState, Fit, claim_of_fit
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.domain_demand import DomainDemand, HostDevices, demand_of_domain, given_resources
from agent.claims.refusal import guest_runs
from agent.claims.request import ClaimRequest, by_size, named_as, with_others
from agent.config.settings import Settings, describe
from agent.device_names import VRAM_CLASS
from agent.driver import DomainNeeds, Guest
from agent.errors import counted
from agent.fleet.answer import answer_body
from agent.gate.decision import GateOutcome, GateVerdict, HookCall
from agent.gate.gate import Gate
from agent.moves.ownership import options_of_move
from agent.moves.states import Move, MoveKind, MoveRole, MoveState, moving_release
from agent.placement.client import PlacementClient
from agent.providers.limits import DISK, disk_warning
from agent.reconcile.pass_report import PassReport
from agent.reconcile.reconciler import Reconciler
from agent.reshape.receipt import Receipt
from agent.shapes import Amounts, Usages, by_class
from agent.state.identity import Identity
from agent.state.operators import Cordon, Pause, PauseRequest
from agent.status.host_status import HostStatus
from agent.status.overview import STARTING, Condition, HostState
from agent.status.recorder import Recorder
from agent.tracker.tracker import ClaimHandle, ResourceTracker
from agent.tree import ProviderTree

LOG = log.get(__name__)
T = TypeVar("T")
OF_CELLS = frozenset({"VCPU", "PCPU", "MEMORY_MB"})
FOREIGN_PROVIDERS_MAX = 32
"""So many names of other hosts' providers are asked of Placement for one answer."""


class Supervisor(Protocol):
    """The part of the agent that runs the passes and handles the faults; the operations report to it."""

    @property
    def settings(self) -> Settings:
        """The settings in force."""

    def look(self) -> PassReport:
        """Run a pass that reads Placement again, also during a back-off. Raises StateError."""

    def report_fault(self, error: errors.PlimsollError) -> None:
        """Degrade the agent's state by this error, and schedule the next pass."""

    def report_silence(self, error: errors.PlacementUnavailable) -> None:
        """Do that for one request that Placement did not answer, unless Placement answers others."""

    def wake_note(self) -> None:
        """Have the host's note left soon at a served Placement, as its host takes other claims now."""

    def request_pass(self, *, after_backoff: bool = False) -> None:
        """Schedule a pass at once, or at the end of the back-off, if one is under way."""

    def is_backing_off(self) -> bool:
        """True while requests to Placement are held back."""

    def verify(self) -> None:
        """Run a pass that compares Placement with what the agent wrote; then follow the host's moves."""

    def end_pass(self, report: PassReport) -> None:
        """Draw the consequences of a pass."""

    def end_audit(self, report: AuditReport) -> None:
        """Draw the consequences of an audit."""


class WrittenDomain(NamedTuple):
    """A domain with everything that its claim gave; `made`: the claim was made for it just now."""

    claim: Claim
    xml: str
    made: bool = False


def _first_granted(options: Sequence[ClaimRequest], attempt: Callable[[ClaimRequest], T]) -> T:
    """What the first alternative gives that is not refused. Raises as `attempt`, with the reason for each."""
    refusals: list[errors.Refused] = []
    for each in options:
        try:
            return attempt(each)
        except errors.ClaimsClosed:
            raise  # no alternative changes that
        except errors.Refused as error:
            refusals.append(error)  # of a claim of another alternative, that one finds it
    if len(options) > 1:
        numbers = [each.alternative or number for number, each in enumerate(options, 1)]
        reasons = (f"{number}: {no.message}" for number, no in zip(numbers, refusals, strict=True))
        refusals[0].message = f"None of {len({*numbers})} alternatives is granted. {' '.join(reasons)}"
    raise refusals[0]


def _only(request: ClaimRequest) -> ClaimRequest:
    """The request, which may have no alternatives and no amount of VRAM here. Raises UsageError."""
    if request.others:
        raise errors.UsageError("alternatives: one thing is asked for here; ask for each on its own.")
    if VRAM_CLASS in request.resources:
        raise errors.UsageError(f"{VRAM_CLASS}: one thing is asked for here; name the class of a size.")
    return request


@dataclass(eq=False)
class Operations:
    """What the routes ask for, and the agent's parts that carry it out; any thread may call.

    A method joins several parts, or decides something; what one part does alone is asked of that part. Each
    method may raise PlimsollError, whose message is a sentence. No method blocks without a bound.
    """

    supervisor: Supervisor
    identity: Identity
    tracker: ResourceTracker
    reconciler: Reconciler
    client: PlacementClient
    auditor: Auditor
    gatekeeper: Gate
    recorder: Recorder
    condition: Condition
    host_status: HostStatus
    _naming: Lock = field(default_factory=Lock)
    _new_names: dict[str, str] = field(default_factory=dict)
    """{name: consumer} of the claims by name that are under way, under the lock `_naming`."""
    _claims_by_name: Counter[str] = field(default_factory=Counter)

    # What the host has

    def configuration(self) -> dict[str, Any]:
        """The settings in force, JSON-ready {group: {option: {value, origin}}}, with secrets masked."""
        return describe(self.supervisor.settings)

    def tree(self) -> tuple[ProviderTree, Usages]:
        """The host's providers in Placement, and their usages. Raises PlacementError."""
        return self.client.read_tree_with(
            self.identity.uuid, self.reconciler.tree, self.client.provider_usages
        )

    def tree_warnings(self, tree: ProviderTree, usages: Usages) -> tuple[str, ...]:
        """Sentences on what the tree offers and the host does not have. Never raises."""
        root = tree.get(self.identity.uuid)
        try:
            free_gb = self.reconciler.driver.disk_free_gb()
        except errors.DriverError:  # the status says that it does not answer
            return ()
        if root is None:
            return ()
        used_gb = usages.get(root.uuid, {}).get(DISK, 0)
        warning = disk_warning(root.inventories.get(DISK), used_gb, free_gb)
        return () if warning is None else (warning,)

    def providers(self) -> ProviderTree:
        """The providers that serve this host, from memory; empty before the first inventory."""
        return self.tracker.view.host.tree

    # Claims

    def claim(self, request: ClaimRequest) -> Claim:
        """Claim for a guest. Raises Refused (DoesNotFit, ClaimsClosed, ClaimConflict), PlacementError."""
        return self.grant(request).claim

    def grant(self, request: ClaimRequest) -> ClaimHandle:
        """As `claim`, for the first alternative that fits; with whether the consumer had it already."""

        def claim(each: ClaimRequest) -> ClaimHandle:
            return self._with_fresh_reserves(lambda: self.tracker.claim(each))

        with self._writing(), self.recorder.record_claim(request):
            options = self.options(request)
            try:
                return _first_granted(options, claim)
            except errors.Refused:
                granted = self.options(request)
                if len(options) == 1 or len(granted) > 1:
                    raise
                return claim(granted[0])  # the same call at once has claimed it meanwhile

    def options(self, request: ClaimRequest) -> Sequence[ClaimRequest]:
        """The request's alternatives, complete; only that of its consumer's claim, if it is one of them."""
        options = self._every_option(request)
        claim = self.tracker.claim_of(request.consumer)
        if claim is None or claim.state is not ClaimState.CLAIMED:
            return options
        return [each for each in options if named_as(each, claim.request) == claim.request] or options

    def _with_fresh_reserves(self, claim: Callable[[], T]) -> T:
        """What `claim` gives; once more after a pass where it was refused by what is reserved for others.

        A refused claim reads again who is on the providers. Another client may have released what a pass
        reserved beside, which no generation shows.
        """
        try:
            return claim()
        except errors.DoesNotFit:
            if not self.reconciler.needs_pass or self.supervisor.is_backing_off():
                raise
        self.supervisor.end_pass(self.reconciler.reconcile("a claim that did not fit"))
        return claim()

    def _every_option(self, request: ClaimRequest) -> Sequence[ClaimRequest]:
        """The request's alternatives, complete, with one for each size of VRAM."""
        # The providers are read, under the tracker's lock, only where VRAM is asked for.
        by_sizes = by_size(
            request, lambda: (name for provider in self.providers() for name in provider.inventories)
        )
        return [self._complete(each) for each in by_sizes.options]

    def _complete(self, request: ClaimRequest) -> ClaimRequest:
        return self.tracker.expand_aliases(request, self.supervisor.settings.pci_aliases)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Around a write of allocations or of the journal: report its faults, and request the pass that
        follows from it."""
        try:
            yield
        except errors.PlacementUnavailable as error:
            self.supervisor.report_silence(error)
            raise
        except errors.StateError as error:
            self.supervisor.report_fault(error)
            raise
        finally:
            if self.reconciler.needs_pass:
                self.supervisor.request_pass()

    def extend(self, consumer: str, resources: Mapping[str, int]) -> Claim:
        """Extend the consumer's claim to these amounts in all; what it has more of stays.

        Raises UnknownConsumer; UsageError where the addition would need exact units or NUMA cells; what
        `claim` raises.
        """
        claim = self.tracker.claim_of(consumer)
        if claim is None:
            raise errors.UnknownConsumer(f"{consumer} has no claim on this host.", consumer=consumer)
        has = claim.request.resources
        more = {name: amount - has.get(name, 0) for name, amount in resources.items()}
        more = {name: amount for name, amount in more.items() if amount > 0}
        if not more:
            return claim
        _, offered = self.tracker.view.host_and_units()
        exact = {name for classes in offered.values() for name in classes}
        unfit = sorted(more.keys() & (exact | (OF_CELLS if claim.cells else frozenset())))
        if unfit:
            raise errors.UsageError(
                f"A claim is not extended by {', '.join(unfit)}: exact units and NUMA cells are chosen for "
                f"the whole claim at once. Release it {errors.by_force(consumer)}, and claim anew."
            )
        request = claim.request.with_more(more)
        with self._writing(), self.recorder.record_claim(request):
            extended = self._with_fresh_reserves(lambda: self.tracker.extend(claim, request))
        if extended is None:
            raise errors.ClaimConflict(f"The claim of {consumer} has changed: try again.", consumer=consumer)
        return extended

    def explain(self, request: ClaimRequest) -> Fit:
        """What `claim` would do with one alternative, without doing it; also while claims are closed."""
        return self.tracker.explain(self._complete(request))

    def capacity(self, request: ClaimRequest) -> Capacity:
        """How many guests that ask for this fit one after the other; also while claims are closed."""
        return self.tracker.capacity(self._complete(_only(request)))

    def defrag(self, request: ClaimRequest) -> Defrag:
        """The fewest moves of guests that make room for this one; nothing is moved."""
        return self.tracker.defrag(self._complete(_only(request)))

    def where(self, body: object) -> dict[str, Any]:
        """The answer to POST /v1/where, which Placement gives for all its hosts."""

        def complete(asked: ClaimRequest, xml: str | None) -> ClaimRequest:
            if xml is not None:
                return self.move_request(xml, asked)
            return self._complete(replace(asked, consumer=str(uuid4())))

        return answer_body(self.client, body, complete, self.device_profiles())

    def device_profiles(self) -> DeviceProfiles:
        """The device profiles that a flavor may name."""
        return self.supervisor.settings.device_profiles

    @contextmanager
    def identified(self, request: ClaimRequest, name: str | None = None) -> Iterator[ClaimRequest]:
        """The request; without a consumer, for the instance of this host with its name, else for a new one.

        `name` is the instance's, without it the request's. While claims of one name are under way, all of
        them have the same consumer. Raises UsageError where several instances have the name.
        """
        name = request.name if name is None else name
        if request.consumer or not name:
            yield request if request.consumer else replace(request, consumer=str(uuid4()))
            return
        with self._naming:
            # Who claims for the same name meanwhile gets the same answer as this claim.
            # The instance is the guest, as libvirt has one domain a name, else that of a claim or a move.
            guests = {guest.uuid for guest in self.reconciler.guests or () if guest.name == name}
            moves = self.tracker.moves().values()
            moving = {move.instance for move in moves if move.name == name and not move.ended}
            claims = {
                claim.consumer for claim in self.tracker.claims().values() if claim.request.name == name
            }
            named = sorted(guests or (claims | moving) - {move.migration for move in moves})
            if len(named) > 1:
                instances = counted(len(named), "instance")
                raise errors.UsageError(
                    f"{name!r} names {instances}, give the uuid of one: {', '.join(named)}",
                    name=name,
                    instances=named,
                )
            consumer = named[0] if named else self._new_names.get(name, str(uuid4()))
            self._new_names[name] = consumer
            self._claims_by_name[name] += 1
        try:
            yield replace(request, consumer=consumer)
        finally:
            with self._naming:
                self._claims_by_name[name] -= 1
                if not self._claims_by_name[name]:
                    del self._claims_by_name[name], self._new_names[name]

    def check_release(self, consumer: str) -> None:
        """Raises GuestRuns where the guest runs here, or the program that claimed; ClaimConflict where the
        guest may run at the source of a move.
        """
        claim = self.tracker.claim_of(consumer)
        process = claim.request.process if claim is not None else None
        if process is not None and not process.has_ended():
            raise errors.GuestRuns(
                f"The process {process.pid} runs with the claim of {consumer}, which ends with it; what it "
                "holds would be given to others. Stop the process first, or use --force.",
                consumer=consumer,
                pid=process.pid,
            )
        begun = (move for move in self.tracker.moves().values() if move.state is MoveState.BEGUN)
        move = next((move for move in begun if move.instance == consumer), None)
        if move is not None and move.role is MoveRole.DESTINATION:
            raise moving_release(move)
        row = self.tracker.view.rows().get(consumer)
        if row is None or not row.claimed or (move is not None and move.role is MoveRole.SOURCE):
            return  # of the source of a move, `release` says to end the move: force does not
        try:
            guests = self.reconciler.read_guests()  # it may have started or stopped since the last pass
        except errors.DriverError:
            guests = () if row.guest is None else (row.guest,)
        guest = next((each for each in guests if each.uuid == consumer and not each.is_off), None)
        if guest is not None:
            raise guest_runs(guest, self.tracker.view.rows().get(consumer, row))

    def release(self, consumer: str) -> bool:
        """Release a claim. Returns True if Placement has executed it, False if it is journaled for later.

        Raises UnknownConsumer.
        """
        if self.reconciler.needs_pass:  # else a device for one-time use would be offered again
            self.reconciler.reconcile("a device came into use")
        with self._writing():
            released = self.tracker.release(consumer, now=self._writes_now())
        if not released:
            self.reconciler.invalidate()
            self.supervisor.request_pass(after_backoff=True)
        return released

    def _writes_now(self) -> bool:
        """Whether an end is sent at once, and not only journaled."""
        return not (self.supervisor.is_backing_off() or self.reconciler.is_contested)

    # Domains, and the gate

    def claim_domain(self, xml: str, asked: ClaimRequest) -> WrittenDomain:
        """Claim what the domain's XML asks for, and what is `asked` for beside it; and complete the domain.

        The consumer is the domain's uuid; without one that of `asked`; if that is empty, as by `identified`
        for the domain's name. Raises
        UsageError where the XML is malformed, or the domain contradicts what is asked for, or its claim: then
        nothing is changed. Raises what `claim` raises.
        """
        with self._demand(self._needs_of(xml), asked) as demand:
            before = self.tracker.claim_of(demand.request.consumer)
            request = before.request if before and demand.is_met_by(before.request) else demand.request
            # Complete the domain without a claim first: a contradiction then changes nothing.
            fit = self.tracker.explain(request, demand.restriction)
            if fit.fits:
                self._complete_domain(xml, claim_of_fit(request, fit))
            with self._writing(), self.recorder.record_claim(request):
                handle = self._with_fresh_reserves(lambda: self.tracker.claim(request, demand.restriction))
            if handle.was_held:
                return WrittenDomain(handle.claim, self._complete_domain(xml, handle.claim))
            with handle:
                return WrittenDomain(handle.claim, self._complete_domain(xml, handle.claim), made=True)

    def explain_domain(self, xml: str, asked: ClaimRequest) -> tuple[ClaimRequest, Fit]:
        """The request of `claim_domain`, and what it would do, without doing it."""
        with self._demand(self._needs_of(xml), asked) as demand:
            return demand.request, self.tracker.explain(demand.request, demand.restriction)

    def move_request(self, xml: str, asked: ClaimRequest) -> ClaimRequest:
        """The request for a guest that moves here: as `claim_domain`, on any devices, CPUs and cells."""
        requests = []
        for each in asked.options:
            with self._demand(self._needs_of(xml).without_places(), each) as demand:
                requests.append(demand.request)
        return with_others(requests)

    def _needs_of(self, xml: str) -> DomainNeeds:
        try:
            return self.reconciler.driver.needs_of(xml)
        except errors.DriverDataError as error:  # the caller wrote it, not the hypervisor
            raise errors.UsageError(error.message) from error

    @contextmanager
    def _demand(self, needs: DomainNeeds, asked: ClaimRequest) -> Iterator[DomainDemand]:
        """What the domain needs beside what is `asked` for its instance, which its uuid or its name names."""
        _only(asked)
        if needs.uuid and asked.consumer and needs.uuid != asked.consumer:
            raise errors.UsageError(
                f"The domain's <uuid> is {needs.uuid}, and the claim is for {asked.consumer}."
            )
        named = replace(asked, consumer=needs.uuid or asked.consumer)
        with self.identified(named, needs.name or asked.name) as identified:
            aliases = self.supervisor.settings.pci_aliases
            host, offered = self.tracker.view.host_and_units()
            _, cells = self.tracker.view.host_and_cells()
            demand = demand_of_domain(needs, identified, HostDevices(host, offered, aliases, cells))
            yield replace(demand, request=self._complete(demand.request))

    def write_domain(self, consumer: str, xml: str, *, replace: bool) -> WrittenDomain:
        """The domain's XML with everything that the consumer's claim on this host gave; writes nothing.

        `replace`: what the domain has from a former place is written over. Raises UnknownConsumer; UsageError
        where the domain contradicts the claim; DriverDataError where the XML is malformed.
        """
        claim = self.tracker.claim_of(consumer)
        if claim is None or claim.state is not ClaimState.CLAIMED:
            raise errors.UnknownConsumer(
                f"{consumer} has no claim on this host that its domain could be written from: claim first.",
                consumer=consumer,
            )
        return WrittenDomain(claim, self._complete_domain(xml, claim, replace=replace))

    def _complete_domain(self, xml: str, claim: Claim, *, replace: bool = False) -> str:
        host, cells = self.tracker.view.host_and_cells()
        given = given_resources(claim, host.tree, cells)
        return self.reconciler.driver.write_domain(xml, given, replace=replace)

    def gate(self, call: HookCall) -> GateVerdict:
        """Decide whether a guest may start or go on.

        Raises Refused where it may not; UsageError, DriverError, PlacementError.
        """
        with self._writing(), self.recorder.record_gate() as record_outcome:
            verdict = self.gatekeeper.decide(call, self.supervisor.settings.driver.host_settings)
            record_outcome(verdict.outcome)
        if verdict.outcome is GateOutcome.NOTED:
            self._look_anew()
        return verdict

    def claim_running(self) -> tuple[tuple[Guest, GateVerdict | errors.Refused], ...]:
        """Claim for the running guests that have no claim. Raises DriverError, PlacementError."""
        with self._writing():
            return self.gatekeeper.claim_running(self.reconciler.read_guests())

    # What an operator closes

    def pause(self, asked: PauseRequest) -> Pause:
        """Take no new claims until `resume`; the pause from now on. Raises StateError."""
        pause = asked.after(self.tracker.admission.pause)
        self._set_pause(pause)
        return pause

    def resume(self) -> None:
        """End the pause, if there is one. Raises StateError."""
        self._set_pause(None)

    def _set_pause(self, pause: Pause | None) -> None:
        before = self.tracker.admission.pause
        if pause == before:
            return
        with self._writing():
            self.tracker.set_pause(pause)
        self.supervisor.wake_note()
        if (before is not None and before.schedulers) != (pause is not None and pause.schedulers):
            self._look_anew()

    def cordon(self, cordon: Cordon) -> None:
        """Give the device to no guest that does not have it. Raises UsageError, StateError."""
        with self._writing():
            self.tracker.cordons.put(cordon)
        self._look_anew()

    def clear_cordon(self, address: str) -> None:
        """Give the device to guests again. Raises UsageError where it is not withheld, StateError."""
        with self._writing():
            self.tracker.cordons.clear(address)
        self._look_anew()

    def _look_anew(self) -> None:
        """Request a pass that reads Placement again."""
        self.reconciler.invalidate()
        self.supervisor.request_pass()

    # Moves

    def provider_names(self, uuids: Collection[str]) -> Mapping[str, str]:
        """{uuid: name} of providers of any host, as far as the agent knows. Never raises."""
        tree = self.reconciler.tree or ProviderTree()
        known = {uuid: provider.name for uuid in uuids if (provider := tree.get(uuid)) is not None}
        others = sorted({*uuids} - {*known})[:FOREIGN_PROVIDERS_MAX]
        if self.supervisor.is_backing_off():
            return known
        try:
            providers = [self.client.find_provider(uuid=uuid) for uuid in others]
        except errors.PlacementError as error:
            LOG.debug("Providers of other hosts are shown without their names: %s", error.message)
            return known
        return known | {provider.uuid: provider.name for provider in providers if provider is not None}

    def begin_move(
        self, kind: MoveKind, migration: str, request: ClaimRequest, alternative: int | None = None
    ) -> Move:
        """Begin a move to this host, with the alternative that the instance has, or the one of that number.

        Raises Refused, UnknownConsumer, UsageError, PlacementError.
        """
        with self._writing(), self.recorder.record_move(kind, request):
            claim = self.tracker.claim_of(request.consumer)
            if claim is not None:  # without a name of its own, it has that of the claim on this host
                request = replace(request, name=request.name or claim.request.name)

            def elsewhere() -> Amounts:
                is_own = self.tracker.view.host.is_own
                found = [self.client.allocations_of(each) for each in (request.consumer, migration)]
                held = (item for holding in found for item in holding.allocations.items())
                return by_class(amounts for uuid, amounts in held if not is_own(uuid))

            every = self._every_option(request)
            options = options_of_move(kind, every, alternative, claim, elsewhere)
            try:
                return _first_granted(
                    options, lambda each: self.tracker.begin_move(each, kind, migration).move
                )
            except errors.DoesNotFit as error:
                is_kept = alternative is None and kind is not MoveKind.LIVE_MIGRATE
                if is_kept and len({each.alternative for each in options}) < len(request.options):
                    kept = f" A move keeps alternative {options[0].alternative} of {len(request.options)}"
                    error.message += f"{kept}; --alternative any takes the first that fits."
                raise

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        """Confirm a move; its state is `confirming` while the write is journaled for later.

        `instance` may help to find it. Raises UnknownConsumer, ClaimConflict, PlacementError.
        """
        with self._writing():
            return self.tracker.confirm_move(migration, instance=instance, now=self._writes_now())

    def revert_move(self, migration: str, instance: str | None) -> Move:
        """Revert a move; its state is `reverting` while the write is journaled for later.

        `instance` may help to find it. Raises UnknownConsumer, ClaimConflict, PlacementError.
        """
        with self._writing():
            return self.tracker.revert_move(migration, instance=instance, now=self._writes_now())

    # Audit, plan and reshape

    def audit(self, *, heal: bool) -> AuditReport:
        """Compare the host, the claims and Placement; with `heal`, execute all repairs.

        Raises DriverError, PlacementError, StateError.
        """
        if self.condition.state is HostState.STARTING:
            raise errors.UsageError(f"There is nothing to audit: {STARTING}.")
        report = self.auditor.audit(heal_own=heal, heal_all=heal)
        self.supervisor.end_audit(report)
        return report

    def look(self) -> AuditReport:
        """Run a pass and an audit at once; the audit repairs nothing.

        Raises DriverError, PlacementError, StateError.
        """
        with self._writing():
            error = self.supervisor.look().error
        if error is not None:
            raise error
        return self.audit(heal=False)

    def reshape(self, undo: str | None) -> tuple[Receipt, ...]:
        """Do the due reshape, even if it was undone before; or undo the one with the receipt `undo`.

        Returns the receipts, none if there was nothing to do. Raises ReshapeRefused, UsageError,
        PlacementError.
        """
        return self.reconciler.reshape(undo, self.supervisor.end_pass)
