"""A small host to serve: a tree, two guests, and claims that really count; no placement and no hypervisor."""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

from agent.api.operations import WrittenDomain
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState, Fit, Shortfall
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.refusal import does_not_fit
from agent.claims.request import ClaimRequest
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import ClaimsClosed, Refused, UnknownConsumer, UsageError
from agent.gate.decision import GateOutcome, GateVerdict, HookCall
from agent.moves.circumstances import Circumstances
from agent.moves.states import Move, MoveKind
from agent.providers.plan import Plan, PutTraits
from agent.reconcile.pass_report import PassReport, Preview
from agent.reshape.receipt import Receipt
from agent.shapes import Usages
from agent.state.journal import Event
from agent.state.operators import Pause, PauseRequest
from agent.status.consumers import consumers_of, find_consumer
from agent.status.host_status import Explanation, HealthInputs, judge_health
from agent.status.metrics import Metrics
from agent.status.overview import ExplainSources, Fault, Health, HostState, Overview, Status, explain
from agent.tracker.claims import Admitted
from agent.tracker.tracker import ClaimHandle
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "11111111-1111-4111-8111-111111111111"
CELL = "22222222-2222-4222-8222-222222222222"
GPU = "33333333-3333-4333-8333-333333333333"
LONER = "44444444-4444-4444-8444-444444444444"
SINCE = 1_790_000_000.0

TREE = ProviderTree(
    [
        Provider(
            ROOT,
            "host1",
            inventories={
                "DISK_GB": Inventory(500, reserved=10),
                "MEMORY_MB": Inventory(65536, reserved=512),
                "VCPU": Inventory(16, allocation_ratio=4.0),
            },
            traits=frozenset({"COMPUTE_NODE", "HW_CPU_X86_AVX2"}),
            generation=7,
        ),
        Provider(CELL, "host1_numa0", ROOT, traits=frozenset({"HW_NUMA_ROOT"}), generation=2),
        Provider(GPU, "host1_pci_0000:84:00.0", CELL, {"VGPU": Inventory(4)}, generation=3),
    ]
)


class SmallHostStatus:
    """What is to be seen of a small host."""

    def __init__(self, host: "SmallHost") -> None:
        self._host = host
        self._metrics = Metrics()

    def status(self) -> Status:
        return self._host.status()

    def health(self) -> Health:
        self._host.fault()
        closed = None if self._host.open else "it is asleep"
        state = HostState.READY if self._host.open else HostState.DEGRADED
        return judge_health(HealthInputs(state, None, closed, True, 0.0, 0.0, True, "/var/lib/plimsoll"))

    def overview(self) -> Overview:
        pairs = self._host.instances()
        return Overview(
            SINCE,
            self._host.status(),
            self.health(),
            tree=TREE,
            used=self._host.usages(),
            guests=tuple(guest for guest, _ in pairs if guest),
            claims={claim.consumer: claim for _, claim in pairs if claim},
            findings=self._host.findings,
            moves=tuple(self._host.moves().values()),
            seen=self._host.circumstances(),
        )

    def metrics(self) -> bytes:
        return self._metrics.text()

    def history(
        self,
        consumer: str | None = None,
        since: float = 0.0,
        limit: int = 100,
        within_s: float | None = None,
    ) -> tuple[Event, ...]:
        self._host.fault()
        events = (
            Event(SINCE, consumer or LONER, "grant", "loner: 1 VCPU"),
            Event(SINCE - 1, "", "pass", "Why."),
        )
        return tuple(each for each in events if each.at >= since)[:limit]

    def find_event_subject(self, text: str) -> str:
        return find_consumer(text, "instance", list(consumers_of(self.overview())), "plimsoll instances")

    def receipts(self) -> tuple[Receipt, ...]:
        return ()

    def explain(self, word: str) -> Explanation:
        return Explanation(
            word, explain(ExplainSources(self.overview(), {GPU: "pci:0000:84:00.0"}), word), {}
        )


class SmallHost:
    """Operations over a fixed tree. `fault` is called first by each, so that a test can make it fail."""

    def __init__(self) -> None:
        self.fault: Callable[[], None] = lambda: None
        self.open = True
        self.placement_away = False
        self.host_status = SmallHostStatus(self)
        self.pending = Plan()
        self.findings: tuple[Finding, ...] = ()
        self.paused: Pause | None = None
        self._claims: dict[str, Claim] = {}
        self._lock = threading.Lock()

    def status(self) -> Status:
        self.fault()
        closed = None if self.open else "the driver has not delivered an inventory yet"
        return Status(
            "host1",
            ROOT,
            HostState.READY if self.open else HostState.DEGRADED,
            SINCE,
            "small",
            "none",
            4711,
            reasons=(closed,) if closed else (),
            fault=None if self.open else Fault("driver", "it is asleep"),
            closed=closed,
            claims=len(self._claims),
            pause=self.paused,
            last_pass=PassReport("Nothing new.", SINCE, 1.25) if self.open else None,
            audited=SINCE,
        )

    def tree(self) -> tuple[ProviderTree, Usages]:
        self.fault()
        return TREE, self.usages()

    def providers(self) -> ProviderTree:
        return TREE

    def tree_warnings(self, tree: ProviderTree, usages: Usages) -> tuple[str, ...]:
        return ()

    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        self.fault()
        units = (UsedUnit("VGPU", "mdev1", "pci:0000:84:00.0"),)
        loner = Guest(LONER, "loner", GuestState.RUNNING, {"MEMORY_MB": 512, "VCPU": 1}, units)
        with self._lock:
            pairs = [(None, claim) for claim in self._claims.values()]
        return ((loner, None), *pairs)

    def device_profiles(self) -> DeviceProfiles:
        return {}

    @contextmanager
    def identified(self, request: ClaimRequest) -> Iterator[ClaimRequest]:
        yield replace(request, consumer=request.consumer or str(uuid4()))

    def claim(self, request: ClaimRequest) -> Claim:
        self.fault()
        if not self.open:
            raise ClaimsClosed("Claims are closed: the driver has not delivered an inventory yet")
        with self._lock:
            known = self._claims.get(request.consumer)
            if known is not None:
                return known
            explanation = self._explain(request)
            if not explanation.fits:
                raise does_not_fit(request, explanation.shortfalls)
            claim = Claim(
                request.consumer,
                ClaimState.CLAIMED,
                request,
                explanation.allocations,
                explanation.units,
            )
            self._claims[request.consumer] = claim
            return claim

    def grant(self, request: ClaimRequest) -> ClaimHandle:
        was_held = request.consumer in self._claims
        return ClaimHandle(Admitted(self.claim(request), was_held), self.release)

    def options(self, request: ClaimRequest) -> Sequence[ClaimRequest]:
        return request.options

    def explain(self, request: ClaimRequest) -> Fit:
        self.fault()
        with self._lock:
            return self._explain(request)

    @property
    def closed_reason(self) -> str | None:
        return None if self.open else "the host is not ready"

    def pause(self, asked: PauseRequest) -> Pause:
        self.fault()
        self.paused = asked.after(self.paused)
        return self.paused

    def resume(self) -> None:
        self.fault()
        self.paused = None

    def claim_domain(self, xml: str, asked: ClaimRequest) -> WrittenDomain:
        return WrittenDomain(self.claim(self.move_request(xml, asked)), xml, made=True)

    def explain_domain(self, xml: str, asked: ClaimRequest) -> tuple[ClaimRequest, Fit]:
        request = self.move_request(xml, asked)
        return request, self.explain(request)

    def move_request(self, xml: str, asked: ClaimRequest) -> ClaimRequest:
        if not asked.consumer or not asked.groups:
            raise UsageError("This host has no guests that are described in XML.")
        return asked

    def write_domain(self, consumer: str, xml: str, *, replace: bool) -> WrittenDomain:
        self.fault()
        if replace or consumer not in self._claims:
            raise UsageError("This host has no guests that are described in XML.")
        return WrittenDomain(self._claims[consumer], xml)

    def check_release(self, consumer: str) -> None:
        self.fault()

    def release(self, consumer: str) -> bool:
        self.fault()
        with self._lock:
            if self._claims.pop(consumer, None) is None:
                raise UnknownConsumer(f"Nothing is known of {consumer}", consumer=consumer)
        return not self.placement_away

    def gate(self, call: HookCall) -> GateVerdict:
        self.fault()
        if call.operation == "prepare":
            raise UsageError("This host has no guests that are described in XML.")
        return GateVerdict(GateOutcome.IGNORED, None, f"the gate does nothing at {call.operation}")

    def claim_running(self) -> tuple[tuple[Guest, GateVerdict | Refused], ...]:
        self.fault()
        loner = Guest(LONER, "loner", GuestState.RUNNING, {"VCPU": 1})
        return (
            (loner, ClaimsClosed("Claims are closed: somebody is at work here.")),
            (loner, GateVerdict(GateOutcome.CLAIMED, LONER, "loner holds 1 VCPU")),
        )

    def circumstances(self) -> Circumstances:
        """What the overview has beside the moves."""
        return Circumstances()

    def moves(self) -> dict[str, Move]:
        self.fault()
        return {}

    def claim_of(self, consumer: str) -> Claim | None:
        self.fault()
        return self._claims.get(consumer)

    def verify(self) -> None:
        self.fault()

    def provider_names(self, uuids: Collection[str]) -> dict[str, str]:
        return {uuid: provider.name for uuid in uuids if (provider := TREE.get(uuid)) is not None}

    def begin_move(
        self, kind: MoveKind, migration: str, request: ClaimRequest, alternative: int | None = None
    ) -> Move:
        self.fault()
        raise UnknownConsumer(f"{request.consumer} holds nothing", consumer=request.consumer)

    def confirm_move(self, migration: str, instance: str | None) -> Move:
        self.fault()
        raise UnknownConsumer(f"No migration {migration} is known", migration=migration)

    def revert_move(self, migration: str, instance: str | None) -> Move:
        return self.confirm_move(migration, instance)

    def audit(self, *, heal: bool) -> AuditReport:
        self.fault()
        healed = frozenset(range(len(self.findings))) if heal else frozenset()
        return AuditReport(self.findings, healed)

    def look(self) -> AuditReport:
        return self.audit(heal=False)

    def preview_reshape(self, undo: str | None) -> Preview:
        self.fault()
        used = self.usages()
        return Preview(TREE, TREE, used, used, (), (), None, (), ())

    def reshape(self, undo: str | None) -> tuple[Receipt, ...]:
        self.fault()
        if undo is not None:
            raise UsageError(f"There is no receipt {undo!r}", undo=undo)
        return ()

    @property
    def reconciler(self) -> "SmallHost":
        """The part that the routes ask for plans and previews."""
        return self

    @property
    def supervisor(self) -> "SmallHost":
        """The part that the routes have look at Placement."""
        return self

    @property
    def tracker(self) -> "SmallHost":
        """The part that the routes ask whether claims are open."""
        return self

    @property
    def admission(self) -> "SmallHost":
        """The part of the tracker that knows."""
        return self

    def next_plan(self) -> Plan:
        self.fault()
        return self.pending

    def configuration(self) -> dict[str, Any]:
        self.fault()
        return {
            "DEFAULT": {"host": {"value": "host1", "origin": "default"}},
            "api": {"claimers": {"value": ["alice", "@ops"], "origin": "/etc/plimsoll/plimsoll.conf"}},
        }

    def drift(self) -> None:
        """From now on there is something to change."""
        operation = PutTraits(ROOT, "host1", frozenset(), frozenset({"CUSTOM_SHINY"}))
        self.pending = Plan((operation,))

    def usages(self) -> Usages:
        usages: Usages = {}
        for claim in list(self._claims.values()):
            for provider, resources in claim.allocations.items():
                for name, amount in resources.items():
                    used = usages.setdefault(provider, {})
                    used[name] = used.get(name, 0) + amount
        return usages

    def _explain(self, request: ClaimRequest) -> Fit:
        """First provider that has the class; no trait is looked at."""
        usages, allocations, shortfalls = self.usages(), {}, []
        for group in request.groups:
            for name, asked in group.resources.items():
                owner = next((each for each in TREE if name in each.inventories), TREE[ROOT])
                capacity = owner.inventories[name].capacity if name in owner.inventories else 0
                free = capacity - usages.get(owner.uuid, {}).get(name, 0)
                if asked > free:
                    reason = f"only {free} of {capacity} are free"
                    shortfalls.append(Shortfall(name, asked, free, owner.name, owner.uuid, reason))
                else:
                    allocations.setdefault(owner.uuid, {})[name] = asked
        if shortfalls:
            return Fit(False, {}, {}, tuple(shortfalls))
        units = {GPU: {"VGPU": ("mdev7",)}} if GPU in allocations else {}
        return Fit(True, allocations, units, ())
