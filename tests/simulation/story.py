"""The vocabulary in which a history is told: by hand in a test, or drawn by a seed.

    with Story() as story:
        a = story.host("a")
        a.claims("web1", VCPU=1, SRIOV_NET_VF=1)
        story.next_write("a", Fate.RESET_AFTER)
        a.releases("web1")
        story.comes_to_rest()

Each verb does one thing and, unless the story goes on `meanwhile`, waits until it is answered. The laws are
checked after each change; Violation names the one that is broken.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.claims.claim import Claim
from agent.driver import GuestState
from agent.errors import ClaimConflict, PlimsollError
from agent.gate.decision import HookCall
from agent.moves.states import Move, MoveKind, MoveState
from agent.placement.embedded.model import SHARING_TRAIT
from simulation import patches
from simulation.journal import RowMeets
from simulation.machine import POOL, RACK, Answer, Host, SimGuest, domain_of, request_for, uuid_of
from simulation.network import CLONE, SOMEBODY, Fate, Network
from simulation.oracle import Oracle, Promise, Violation
from simulation.tasks import Process, Scheduler

ANSWER_S = 200.0
REST_S = 3000.0
CALM_S = 600.0
SOON_S = 5.0
POOL_GB = 200
DEVICES = ("SRIOV_NET_VF", "PGPU", "PCPU")


@dataclass(frozen=True)
class Step:
    """One sentence of a history."""

    verb: str
    args: tuple[Any, ...] = ()
    amounts: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        told = SENTENCES[self.verb]
        amounts = " and ".join(f"{amount} {name}" for name, amount in self.amounts)
        return told.format(*self.args, amounts=amounts)


SENTENCES = {
    "claims": "host {0} is asked to claim {amounts} for {1}",
    "releases": "host {0} is asked to release {1}",
    "guest_starts": "the guest {1} starts on host {0} with what was claimed for it",
    "guest_grows": "the guest {1} on host {0} gets {amounts} more, past the agent",
    "guest_loses_a_device": "the guest {1} on host {0} loses a device",
    "guest_shares_a_device": "the guest {1} on host {0} gets a device of {2} as well, past the agent",
    "guest_stops": "the guest {1} on host {0} is shut off",
    "guest_resizes": "the guest {1} on host {0} becomes what is claimed for it",
    "gate_lets_in": "libvirt starts the guest {1} with {amounts} on host {0}, and asks the gate",
    "gate_sees_end": "libvirt ends the guest {1} on host {0}, and tells the gate",
    "guest_goes": "the guest {1} is gone from host {0}",
    "stranger_starts": "a guest {1} that nobody claimed for starts on host {0} with {amounts}",
    "schedules": "a scheduler writes an allocation of {amounts} on host {0} for {1}",
    "deletes_allocation": "an admin deletes the allocations of {0}",
    "empties_allocation": "an admin writes that {0} holds nothing",
    "rewrites_allocation": "an admin writes {1} times that {0} holds what it holds",
    "narrows_allocation": "an admin takes a provider out of the allocations of {0}",
    "control_plane_moves": "a control plane moves {1}, whose guest is on host {0}, to host {2} as {3}",
    "begins_move": "host {0} is asked to begin a {3} of {1} as {2}, with {amounts}",
    "confirms": "host {0} is asked to confirm {1}",
    "reverts": "host {0} is asked to revert {1}",
    "guest_moves": "the guest {1} moves from host {0} to host {2}",
    "dies": "the agent of host {0} is killed",
    "will_die": "the agent of host {0} will be killed at the {1}th place where it waits",
    "starts": "the agent of host {0} starts",
    "loses_disk": "host {0} gets an empty state directory",
    "is_cloned": "another machine starts with a copy of host {0}'s disk",
    "clone_audits": "the machine with the copy of host {0}'s disk is asked for an audit that heals",
    "clone_claims": "the machine with the copy of host {0}'s disk is asked to claim {amounts} for {1}",
    "reshapes": "the driver of host {0} reports its devices {1}",
    "loses_functions": "a network card of host {0} loses its virtual functions",
    "regains_functions": "the virtual functions of host {0} are back",
    "next_write": "the next write of host {0} {1.value}",
    "pauses": "Placement's process {0} is paused",
    "resumes": "Placement's process {0} goes on",
    "placement_dies": "the active server of Placement is killed",
    "next_row": "the server of Placement that writes the next row {0.value}",
    "is_cut": "host {0} cannot reach Placement",
    "is_joined": "host {0} reaches Placement again",
    "journal_stalls": "the next commit of host {0}'s journal takes {1:g} s",
    "journal_fails": "the next commit of host {0}'s journal fails",
    "journal_fails_later": "after {1} more commits, one of host {0}'s journal fails",
    "audits": "host {0} is asked for an audit that heals",
    "looks": "host {0} is asked to verify",
    "starts_guests_slowly": "from now on, guests that libvirt starts take {0:g} s to be there",
    "sets_clock": "the wall clock of all hosts is set {0:+g} s",
    "is_suspended": "host {0} is suspended for {1:g} s",
    "waits": "{0:g} s pass",
    "lets": "the tasks take {0} turns",
    "answers_come": "the answers come",
}


class Story:
    """A world in which a history is told. Leaving the context ends it."""

    def __init__(
        self,
        hosts: str = "ab",
        *,
        seed: int = 0,
        servers: int = 1,
        restless: float = 0.0,
        stall: float = 0.0,
        pooled: bool = False,
        shared: bool = False,
        bound: bool = True,
    ) -> None:
        """`pooled`: the hosts share a pool, and have no other disks. `shared`, `bound` as in Network."""
        self._stack = ExitStack()
        self._pooled = pooled
        self._names, self._servers, self._shared, self._bound = hosts, servers, shared, bound
        self.scheduler = Scheduler(seed, restless=restless, stall=stall)
        self.told: list[str] = []
        self.hosts: dict[str, Host] = {}
        self.clones: dict[str, Host] = {}
        self.answers: list[Answer] = []
        self.latest: dict[str, Answer] = {}
        self.asked: dict[str, list[Answer]] = {}
        self._waits = True
        self._migrations: dict[str, tuple[str, str, str | None]] = {}
        self._under_way: dict[str, str] = {}
        self._starting: dict[tuple[str, str], frozenset[tuple[str, str]]] = {}
        """{(host, guest): the units that the domain names} of the guests that libvirt is about to start."""
        self._slow_s = 0.0
        self._rewritten: set[str] = set()
        self.moved: set[str] = set()
        """Consumers that a move may have taken away: their host may not know it yet."""

    def __enter__(self) -> Story:
        with self._stack as stack:
            stack.callback(self._close_disks)
            stack.enter_context(patches.simulated(self.scheduler))
            self._directory = directory = Path(tempfile.mkdtemp(prefix="plimsoll-story-", dir=_fast()))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            self.network = Network(self.scheduler, self._servers, self._trace, shared=self._shared)
            self.network.bound = self._bound
            self.oracle = Oracle(self.scheduler, self.network, self.hosts)
            self.network.observe = self.oracle.wrote
            self.scheduler.on_death = self._died
            if self._pooled:
                self._make_pool()
            for number, name in enumerate(self._names, start=1):
                host = Host(
                    name,
                    number,
                    self.scheduler,
                    self.network,
                    directory / name,
                    self._trace,
                    pooled=self._pooled,
                )
                host.disk.committed = partial(self.oracle.committed, host)
                host.on_reserved = self.oracle.reserved
                self.oracle.names[host.uuid] = f"host {name}"
                self.hosts[name] = host
            self._run(lambda: all(host.agent is not None for host in self.hosts.values()), 120.0)
            self._run(lambda: False, 1.0)
            self._stack = stack.pop_all()
        return self

    def _make_pool(self) -> None:
        """An operator's sharing provider of disk space."""
        path = f"/resource_providers/{POOL}"
        self._do("POST", "/resource_providers", {"name": "pool", "uuid": POOL})
        for what, content in (
            ("traits", {"traits": [SHARING_TRAIT]}),
            ("aggregates", {"aggregates": [RACK]}),
            ("inventories", {"inventories": {"DISK_GB": {"total": POOL_GB}}}),
        ):
            generation = self._do("GET", path).body["generation"]
            self._do("PUT", f"{path}/{what}", {"resource_provider_generation": generation, **content})

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _close_disks(self) -> None:
        for host in (*self.hosts.values(), *self.clones.values()):
            host.disk.close()

    # How it is told

    def host(self, name: str) -> Teller:
        """The verbs of this host: `story.host("a").claims(...)` is `story.claims("a", ...)`."""
        return Teller(self, name)

    @contextlib.contextmanager
    def meanwhile(self) -> Iterator[None]:
        """Within the block the story does not wait for answers."""
        before, self._waits = self._waits, False
        try:
            yield
        finally:
            self._waits = before

    def tell(self, step: Step) -> None:
        """Do what the step says; nothing where it makes no sense now."""
        self._trace(f"-- {step}")
        getattr(self, step.verb)(*step.args, **dict(step.amounts))

    def _trace(self, line: str) -> None:
        for uuid, name in self.oracle.names.items():
            line = line.replace(uuid, name)
        self.told.append(f"{self.scheduler.now:9.3f}  {line}")

    def _died(self, process: Process) -> None:
        for host in (*self.hosts.values(), *self.clones.values()):
            host.died(process)
        for host_name, uuid in self._starting if self._slow_s else ():
            if host_name == process.name:  # libvirt gets no answer: the guest does not start
                self.oracle.forget(host_name, uuid)

    def _run(
        self, until: Callable[[], bool] = lambda: False, seconds: float = 0.0, slices: int = 200_000
    ) -> bool:
        came = self.scheduler.run(until, seconds=seconds, slices=slices)
        if self.oracle.found is not None:
            raise self.oracle.found
        for task, error in self.scheduler.broken:
            raise Violation("no task breaks", f"{task.name}: {error!r}") from error
        return came

    def _ask(
        self,
        host: str,
        operation: str,
        consumer: str,
        function: Callable[[Any], Any],
        then: Callable[[Answer], None] = lambda answer: None,
        refused: Callable[[Answer, PlimsollError], None] = lambda answer, error: None,
    ) -> Answer:
        """`then` and `refused` are called at the end, unless something else was asked for the consumer."""
        uuid = uuid_of(consumer)
        self.oracle.names[uuid] = consumer

        def alone() -> bool:
            others = [each for each in self.asked.get(consumer, ()) if each is not answer]
            return (
                self.latest.get(consumer) is answer and not overlapped and all(each.ended for each in others)
            )

        def call(operations: Any) -> Any:
            try:
                value = function(operations)
            except PlimsollError as error:
                if alone():
                    refused(answer, error)
                raise
            if alone():
                answer.value = value
                answer.ended = True
                then(answer)
            return value

        # Of two at once, either may be done first; what is granted then need not stay.
        overlapped = any(not each.ended for each in self.asked.get(consumer, ()))
        answer = self.hosts[host].ask(operation, call)
        self.latest[consumer] = answer
        self.asked.setdefault(consumer, []).append(answer)
        self.answers.append(answer)
        if self._waits:
            self._finish(answer)
        return answer

    def _finish(self, answer: Answer) -> None:
        task = answer.task
        if task is not None:
            self._run(lambda: task.done, ANSWER_S)

    # Claims

    def claims(self, host: str, consumer: str, **amounts: int) -> Answer:
        request = request_for(consumer, amounts)

        def granted(answer: Answer) -> None:
            claim: Claim = answer.value
            if self.oracle.is_written_by_others(uuid_of(consumer), since=answer.begun_at):
                return
            if consumer not in self.moved or self.scheduler.stamped_at[claim.since] >= answer.begun_at:
                self._promise(host, {consumer}, claim)

        return self._ask(
            host, f"claim for {consumer}", consumer, lambda operations: operations.claim(request), granted
        )

    def _promise(self, host: str, party: set[str], claim: Claim) -> None:
        units = frozenset((name, unit) for _, name, unit in claim.exact)
        if self.hosts[host].emptied_at >= claim.since:
            return
        total: dict[str, int] = {}
        for amounts in claim.allocations.values():
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        self.oracle.promise(Promise(host, frozenset(map(uuid_of, party)), total, units, self.scheduler.now))

    def releases(self, host: str, consumer: str) -> Answer:
        uuid = uuid_of(consumer)
        if any(uuid in each.guests for each in self.hosts.values()):
            self.oracle.disturbed.add(uuid)  # whoever releases what a guest has gets what he asks for
        for name in self.hosts:
            self.oracle.forget(name, uuid)

        def released(answer: Answer) -> None:
            if answer.value:
                self.oracle.released(self.hosts[host], uuid)

        return self._ask(
            host, f"release of {consumer}", consumer, lambda operations: operations.release(uuid), released
        )

    # Guests

    def guest_starts(self, host: str, consumer: str) -> None:
        """With what the host's journal has for it."""
        here, uuid = self.hosts[host], uuid_of(consumer)
        row = self.oracle.rows(here).get(uuid)
        if (
            row is None
            or row.state != "claimed"
            or any(uuid in other.guests for other in self.hosts.values())
        ):
            return
        if consumer in self.moved:
            self.oracle.disturbed.add(uuid)  # the host may not know yet that it is another's
        here.put_guest(uuid, SimGuest(consumer, _sum(row.allocations), tuple(sorted(row.units))))

    def guest_grows(self, host: str, consumer: str, **amounts: int) -> None:
        here, uuid = self.hosts[host], uuid_of(consumer)
        guest = here.guests.get(uuid)
        if guest is None:
            return
        more, units = dict(guest.resources), list(guest.units)
        for name, amount in amounts.items():
            if name in DEVICES:
                free = self._free_units(here, name)[:amount]
                if len(free) < amount:
                    return
                units += [(name, unit) for unit in free]
            more[name] = more.get(name, 0) + amount
        here.put_guest(uuid, replace(guest, resources=more, units=tuple(units)))

    def guest_loses_a_device(self, host: str, consumer: str) -> None:
        here, uuid = self.hosts[host], uuid_of(consumer)
        guest = here.guests.get(uuid)
        if guest is None or not guest.units:
            return
        here.put_guest(uuid, replace(guest, units=guest.units[1:]))

    def guest_shares_a_device(self, host: str, consumer: str, other: str) -> None:
        """It is one device: what the other is promised stays, and the agent cannot take it from the guest."""
        here, uuid = self.hosts[host], uuid_of(consumer)
        guest, having = here.guests.get(uuid), here.guests.get(uuid_of(other))
        if guest is None or having is None or not having.units or having.units[0] in guest.units:
            return
        unit = having.units[0]
        rows = self.oracle.rows(here).items()
        claimants = {self.oracle.party(who) for who, row in rows if unit in row.units}
        for one in {uuid, uuid_of(other), *claimants}:
            self.oracle.excused |= {(host, unit[1], one, who) for who in (uuid, uuid_of(other)) if who != one}
        here.put_guest(uuid, replace(guest, units=(*guest.units, unit)))

    def guest_stops(self, host: str, consumer: str) -> None:
        here, uuid = self.hosts[host], uuid_of(consumer)
        if uuid in here.guests:
            here.put_guest(uuid, replace(here.guests[uuid], state=GuestState.SHUTOFF))

    def guest_goes(self, host: str, consumer: str) -> None:
        if uuid_of(consumer) in self.hosts[host].guests:
            self.hosts[host].drop_guest(uuid_of(consumer))

    def stranger_starts(self, host: str, consumer: str, **amounts: int) -> None:
        """Nobody asked the agent."""
        here, uuid = self.hosts[host], uuid_of(consumer)
        self.oracle.names[uuid] = consumer
        if any(uuid in other.guests for other in self.hosts.values()):
            return
        units: list[tuple[str, str]] = []
        for name, amount in amounts.items():
            if name in DEVICES:
                free = self._free_units(here, name)[:amount]
                if len(free) < amount:
                    return
                units += [(name, unit) for unit in free]
        if consumer in self.moved:
            self.oracle.disturbed.add(uuid)  # the host may not know yet that it is another's
        here.put_guest(uuid, SimGuest(consumer, amounts, tuple(units)))

    def _free_units(self, host: Host, name: str) -> list[str]:
        taken = {unit for row in self.oracle.rows(host).values() for _, unit in row.units}
        taken |= {unit for guest in host.guests.values() for _, unit in guest.units}
        taken |= {
            unit
            for (name_of, _), units in self._starting.items()
            if name_of == host.name
            for _, unit in units
        }
        units = [
            unit
            for provider in host.described()
            for unit in provider.units.get(name, ())
            if unit not in taken
        ]
        return sorted(units)

    def guest_resizes(self, host: str, consumer: str) -> None:
        here, uuid = self.hosts[host], uuid_of(consumer)
        row, guest = self.oracle.rows(here).get(uuid), here.guests.get(uuid)
        if row is not None and guest is not None and row.state == "claimed":
            here.put_guest(uuid, SimGuest(consumer, _sum(row.allocations), tuple(sorted(row.units))))

    # The gate

    def gate_lets_in(self, host: str, consumer: str, **amounts: int) -> Answer | None:
        """The hook asks; if it may, the guest is there."""
        here, uuid = self.hosts[host], uuid_of(consumer)
        if any(uuid in each.guests and each.guests[uuid].runs for each in self.hosts.values()):
            return None
        if self._slow_s and (host, uuid) in self._starting and not here.process.dead:
            return None  # libvirt starts a domain once at a time
        row = self.oracle.rows(here).get(uuid)
        units: list[tuple[str, str]] = sorted(row.units) if row is not None else []
        if row is None:
            for name, amount in amounts.items():
                if name in DEVICES:
                    free = self._free_units(here, name)[:amount]
                    if len(free) < amount:
                        return None  # its domain cannot name devices that there are not
                    units += [(name, unit) for unit in free]
        guest = SimGuest(consumer, _sum(row.allocations) if row is not None else amounts, tuple(units))

        self._starting[host, uuid] = frozenset(units)
        before = self.asked.get(consumer, [])
        alone, asked_at, own = all(each.ended for each in before), self.scheduler.now, len(before) + 1

        def start(operations: Any) -> Any:
            try:
                verdict = operations.gate(HookCall("prepare", "begin", domain_of(uuid, guest)))
                claim = operations.tracker.claim_of(uuid)
                if claim is not None and self._slow_s:
                    # What is asked for meanwhile may be done first; what is granted then need not stay.
                    unasked = alone and len(self.asked[consumer]) == own
                    if unasked and self.scheduler.now < asked_at + SOON_S:
                        self._promise(host, {consumer}, claim)
                    try:
                        self.scheduler.sleep(self._slow_s)
                    finally:
                        self.oracle.forget(host, uuid)  # an agent that is killed gave libvirt no answer
            finally:
                self._starting.pop((host, uuid), None)
            if not any(uuid in each.guests and each.guests[uuid].runs for each in self.hosts.values()):
                here.put_guest(uuid, guest)
            return verdict

        for name in self.hosts:
            self.oracle.forget(name, uuid)
        return self._ask(host, f"start of {consumer}", consumer, start)

    def gate_sees_end(self, host: str, consumer: str) -> Answer | None:
        here, uuid = self.hosts[host], uuid_of(consumer)
        guest = here.guests.get(uuid)
        if guest is None or (self._slow_s and (host, uuid) in self._starting):
            return None
        here.drop_guest(uuid)
        for name in self.hosts:
            self.oracle.forget(name, uuid)
        call = HookCall("release", "end", domain_of(uuid, guest))
        return self._ask(host, f"end of {consumer}", consumer, lambda operations: operations.gate(call))

    # Others who write to Placement

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return self.network.do(SOMEBODY, method, path, body, "1.39")

    def schedules(self, host: str, consumer: str, **amounts: int) -> None:
        """On the first providers of the host that have the classes."""
        uuid = uuid_of(consumer)
        self.oracle.names[uuid] = consumer
        record = self.network.model.consumers.get(uuid)
        if record is not None or any(uuid in self.oracle.rows(each) for each in self.hosts.values()):
            return
        allocations = self._place(host, amounts)
        if allocations is not None:
            self._do("PUT", f"/allocations/{uuid}", self._body(uuid, allocations))

    def _place(self, host: str, amounts: Mapping[str, int]) -> dict[str, dict[str, dict[str, int]]] | None:
        """On the first providers of the host that have the classes; None where it is full."""
        allocations: dict[str, dict[str, dict[str, int]]] = {}
        for name, amount in amounts.items():
            shared = self.network.model.tree(POOL) if self._pooled else []
            for provider in (*self.network.model.tree(self.hosts[host].uuid), *shared):
                inventory = provider.inventories.get(name)
                used = self.network.model.used(provider.uuid, name)
                if inventory is not None and inventory.capacity - used >= amount:
                    allocations.setdefault(provider.uuid, {"resources": {}})["resources"][name] = amount
                    break
            else:
                return None
        return allocations

    def deletes_allocation(self, consumer: str) -> None:
        self._do("DELETE", f"/allocations/{uuid_of(consumer)}")

    def empties_allocation(self, consumer: str) -> None:
        """As `deletes_allocation`, and it raises the generations of the providers."""
        record = self.network.model.consumers.get(uuid_of(consumer))
        if record is not None and record.allocations:
            self._do("PUT", f"/allocations/{uuid_of(consumer)}", self._body(uuid_of(consumer), {}))

    def rewrites_allocation(self, consumer: str, times: int) -> None:
        """Each time the consumer's generation rises, and those of its providers.

        Of each consumer once: in a second life its generation could otherwise meet a late write of the first
        one above BAR_GENERATION_MAX, of which no bar warns the hosts.
        """
        uuid = uuid_of(consumer)
        if uuid not in self.network.model.consumers or uuid in self._rewritten:
            return
        self._rewritten.add(uuid)
        for _ in range(times):
            held = self.network.holdings()[uuid]
            if held:
                body = self._body(uuid, {at: {"resources": dict(each)} for at, each in held.items()})
                self._do("PUT", f"/allocations/{uuid}", body)

    def narrows_allocation(self, consumer: str) -> None:
        """No generation of the provider that is left out shows it."""
        record = self.network.model.consumers.get(uuid_of(consumer))
        if record is not None and len(record.allocations) > 1:
            _, *rest = sorted(record.allocations)
            left = {at: {"resources": dict(record.allocations[at])} for at in rest}
            if rest == [POOL]:
                self.network.bound = False  # it is on no host now: no bound token may release it
            self._do("PUT", f"/allocations/{uuid_of(consumer)}", self._body(uuid_of(consumer), left))

    def control_plane_moves(self, host: str, consumer: str, target: str, migration: str) -> None:
        """Of an instance without a claim, as nova does: the migration gets what it had on this host."""
        uuid, moving = uuid_of(consumer), uuid_of(migration)
        tree = {provider.uuid for provider in self.network.model.tree(self.hosts[host].uuid)}
        old = self.network.holdings().get(uuid, {})
        if (
            uuid not in self.hosts[host].guests
            or not old
            or not set(old) <= tree
            or any(uuid in self.oracle.rows(each) for each in self.hosts.values())
        ):
            return
        place = self._place(target, _sum(old))
        if place is None:
            return
        self.oracle.names[moving], self.oracle.party_of[moving] = migration, uuid
        self.oracle.foreign_migrations.add(moving)
        self.moved.add(consumer)
        self._do(
            "POST",
            "/allocations",
            {
                moving: self._body(
                    moving, {at: {"resources": dict(each)} for at, each in old.items()}, owner=uuid
                ),
                uuid: self._body(uuid, place),
            },
        )

    def _body(self, uuid: str, allocations: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
        """`owner`: the instance whose project and user a migration has."""
        record = self.network.model.consumers.get(uuid)
        migrations = {*self.oracle.foreign_migrations, *map(uuid_of, self._migrations)}
        owned = record or self.network.model.consumers.get(owner)
        return {
            "allocations": allocations,
            # Another owner would make it an allocation of somebody else, which no agent may take away.
            "project_id": owned.project_id if owned is not None else "plimsoll",
            "user_id": owned.user_id if owned is not None else "plimsoll",
            "consumer_generation": record.generation if record is not None else None,
            "consumer_type": "MIGRATION" if uuid in migrations else "INSTANCE",
        }

    # Moves

    def begins_move(self, host: str, consumer: str, migration: str, kind: str, **amounts: int) -> Answer:
        """To this host."""
        self.oracle.names[uuid_of(migration)] = migration
        self.oracle.party_of[uuid_of(migration)] = uuid_of(consumer)
        request = request_for(consumer, amounts)
        source = next(
            (name for name, each in self.hosts.items() if uuid_of(consumer) in self.oracle.rows(each)), None
        )
        self._migrations[migration] = (consumer, host, source)
        self._under_way[migration] = consumer
        self.moved.add(consumer)
        for name in self.hosts:
            self.oracle.forget(name, uuid_of(consumer))

        def begun(answer: Answer) -> None:
            move: Move = answer.value
            stands = move.state is MoveState.BEGUN and source not in (None, host)
            if self.oracle.is_written_by_others(uuid_of(consumer), since=answer.begun_at):
                stands = False  # "only the migration holds something": the agent deletes it (docs/moves.md)
            if self._goes_back(uuid_of(consumer)):
                stands = False
            if stands and move.new is not None:
                self._promise(host, {consumer}, move.new)
            if source is None:
                self._under_way.pop(migration, None)

        return self._ask(
            host,
            f"begin of {migration}",
            consumer,
            lambda operations: operations.begin_move(MoveKind(kind), uuid_of(migration), request),
            begun,
        )

    def confirms(self, host: str, migration: str, *, named: bool = True) -> Answer | None:
        return self._ends_move(host, migration, "confirm", named)

    def reverts(self, host: str, migration: str, *, named: bool = True) -> Answer | None:
        return self._ends_move(host, migration, "revert", named)

    def _ends_move(self, host: str, migration: str, how: str, named: bool) -> Answer | None:
        """`named`: the source is told whose migration it is."""
        if migration not in self._migrations:
            return None
        consumer, target, source = self._migrations[migration]
        if any(uuid_of(consumer) in each.guests for name, each in self.hosts.items() if name != target):
            self.oracle.disturbed.add(uuid_of(consumer))  # the guest is not where the move leaves it
        for name in self.hosts:
            self.oracle.forget(name, uuid_of(consumer))

        def end(operations: Any) -> Any:
            method = operations.confirm_move if how == "confirm" else operations.revert_move
            return method(uuid_of(migration), uuid_of(consumer) if named and host == source else None)

        def ended(answer: Answer) -> None:
            self._under_way.pop(migration, None)

        def refused(answer: Answer, error: PlimsollError) -> None:
            waited_s = self.scheduler.now - answer.begun_at  # longer: it may have waited for a turn in vain
            if isinstance(error, ClaimConflict) and waited_s < SOON_S:
                self.oracle.refused_end(self.hosts[host], uuid_of(migration))

        return self._ask(host, f"{how} of {migration}", consumer, end, ended, refused)

    def guest_moves(self, host: str, consumer: str, target: str) -> None:
        uuid = uuid_of(consumer)
        guest = self.hosts[host].guests.get(uuid)
        row = self.oracle.rows(self.hosts[target]).get(uuid)
        moving = any(
            move["instance"] == uuid and move["state"] == "begun" and move["role"] == "destination"
            for move in self.oracle.moves(self.hosts[target])
        )
        if guest is None or row is None or host == target or not moving:
            return
        if self._goes_back(uuid) or not row.allocations.keys() & self.network.holdings().get(uuid, {}).keys():
            self.oracle.disturbed.add(uuid)  # a later move took its instance onward, and it goes back alone
        self.hosts[host].drop_guest(uuid)
        self.hosts[target].put_guest(uuid, replace(guest, units=tuple(sorted(row.units))))

    def _goes_back(self, instance: str) -> bool:
        """Whether an agent has answered that it reverts a move of the instance, and has yet to do it.

        "It takes the instance back when it can, wherever the instance is by then" (docs/moves.md).
        """
        moves = (move for each in self.hosts.values() for move in self.oracle.moves(each))
        return any(move["instance"] == instance and move["state"] == "reverting" for move in moves)

    # Agents

    def dies(self, host: str) -> None:
        self.scheduler.kill(self.hosts[host].process)

    def will_die(self, host: str, places: int) -> None:
        process = self.hosts[host].process
        if not process.dead:
            process.killed_at = process.places + places

    def starts(self, host: str) -> None:
        here = self.hosts[host]
        if here.process.dead:
            here.start()
            if self._waits:
                self._run(lambda: here.agent is not None, 60.0)
                self._run(lambda: False, 2.0)

    def loses_disk(self, host: str) -> None:
        """While its agent does not run."""
        here = self.hosts[host]
        if here.process.dead:
            here.lose_disk()
            self.oracle.forget_host(host)

    # A disk in two machines

    def is_cloned(self, host: str) -> None:
        """Of the same model, with guests of its own."""
        if host in self.clones:
            return
        here, name = self.hosts[host], f"{CLONE}{host}"
        number = 1 + sorted(self.hosts).index(host)
        clone = Host(
            name,
            number,
            self.scheduler,
            self.network,
            self._directory / name,
            self._trace,
            pooled=self._pooled,
            clone_of=here,
        )
        self.clones[host] = clone
        self.oracle.clones[name] = host
        self._settle()

    def clone_audits(self, host: str) -> Answer | None:
        clone = self.clones.get(host)
        if clone is None:
            return None
        answer = clone.ask("audit", lambda operations: operations.audit(heal=True))
        if self._waits:
            self._finish(answer)
        return answer

    def clone_claims(self, host: str, consumer: str, **amounts: int) -> Answer | None:
        """For an instance of its own, which only its machine has."""
        clone, consumer = self.clones.get(host), f"{consumer} on the clone"
        if clone is None:
            return None
        uuid = uuid_of(consumer)
        self.oracle.names[uuid] = consumer
        self.oracle.disturbed.add(uuid)
        request = request_for(consumer, amounts)

        def claim(operations: Any) -> Any:
            granted: Claim = operations.claim(request)
            self._promise_of(clone.name, uuid, granted)
            return granted

        answer = clone.ask(f"claim for {consumer}", claim)
        if self._waits:
            self._finish(answer)
        return answer

    def _promise_of(self, clone: str, consumer: str, claim: Claim) -> None:
        amounts = _sum(claim.allocations)
        self.oracle.promise(Promise(clone, frozenset({consumer}), amounts, frozenset(), self.scheduler.now))

    def _end_clones(self) -> None:
        """The operator takes the copies away, and says on each host that it goes on."""
        for host, clone in self.clones.items():
            clone.wanted = False
            for key in [key for key in self.oracle.promises if key[0] == clone.name]:
                del self.oracle.promises[key]
            if not clone.process.dead:
                self.scheduler.kill(clone.process)
            clone.disk.close()
            here = self.hosts[host]
            if not here.process.dead:
                self.scheduler.kill(here.process)
            here.disk.adopt()
        self.clones.clear()

    def reshapes(self, host: str, where: str) -> None:
        self.hosts[host].reshape(flat_devices=where == "flat", report_numa=where == "by cell")
        self._settle()

    def loses_functions(self, host: str) -> None:
        units = frozenset(unit for unit in self.hosts[host].devices if ":02.1" in unit)
        self.hosts[host].lose_units(units)
        self._settle()

    def regains_functions(self, host: str) -> None:
        self.hosts[host].regain_units()
        self._settle()

    def _settle(self) -> None:
        if self._waits:
            self._run(lambda: False, 5.0)

    def audits(self, host: str) -> Answer:
        return self._ask(host, "audit", f"audit of {host}", lambda operations: operations.audit(heal=True))

    def looks(self, host: str) -> None:
        here = self.hosts[host]
        if here.agent is not None:
            agent = here.agent.assembled.agent
            task = self.scheduler.spawn("call verify", here.process, agent.verify)
            if self._waits:
                self._run(lambda: task.done, ANSWER_S)

    # Faults

    def next_write(self, host: str, fate: Fate, later_s: float = 30.0) -> None:
        self.network.expect(host, fate, later_s)

    def pauses(self, number: int) -> None:
        if number <= len(self.network.servers):
            self.network.pause(number)

    def resumes(self, number: int) -> None:
        if number <= len(self.network.servers):
            self.network.resume(number)

    def placement_dies(self) -> None:
        self.network.kill()

    def next_row(self, meets: RowMeets) -> None:
        """That a request of a host makes."""
        self.network.meet(meets)

    def is_cut(self, host: str) -> None:
        self.network.cut.add(host)

    def is_joined(self, host: str) -> None:
        self.network.cut.discard(host)

    def journal_stalls(self, host: str, seconds: float) -> None:
        self.hosts[host].disk.stalls.append(seconds)

    def journal_fails(self, host: str) -> None:
        self.hosts[host].disk.fails += 1

    def journal_fails_later(self, host: str, commits: int) -> None:
        self.hosts[host].disk.fails_after.append(commits)

    # Time

    def starts_guests_slowly(self, seconds: float) -> None:
        """Less than the gate's patience."""
        self._slow_s = seconds

    def sets_clock(self, seconds: float) -> None:
        """The monotonic clock goes on as it was."""
        self.scheduler.ahead_s += seconds

    def is_suspended(self, host: str, seconds: float) -> None:
        """Its wall clock goes on meanwhile, and its monotonic clock does not.

        A guest that comes meanwhile is one that comes at the waking, before the agent goes on.
        """
        self.hosts[host].suspend(seconds)

    def waits(self, seconds: float) -> None:
        self._run(lambda: False, seconds)

    def lets(self, turns: int) -> None:
        """Tasks that can go on take so many turns; the clock stands."""
        self._run(lambda: False, 0.0, turns)

    def answers_come(self) -> None:
        for answer in self.answers:
            self._finish(answer)

    def comes_to_rest(self) -> None:
        """All faults cease, each agent runs, and nothing is left over. Raises Violation."""
        self._trace("-- all faults cease")
        self.network.calm()
        self.scheduler.stall = 0.0
        self._end_clones()
        for host in self.hosts.values():
            host.resume()
            host.disk.stalls.clear()
            host.disk.fails = 0
            host.disk.fails_after.clear()
            host.process.killed_at = None if not host.process.dead else -1
        for name in self.hosts:
            self.starts(name)
        self.answers_come()
        end = self.scheduler.now + REST_S
        while True:
            self._run(lambda: False, CALM_S)
            try:
                self.oracle.at_rest()
            except Violation as violation:
                if self.scheduler.now >= end or violation.law != "all comes to rest":
                    raise
            else:
                self._audit_at_rest()
                return

    def _audit_at_rest(self) -> None:
        for host in self.hosts.values():
            answer = host.ask("audit at rest", lambda operations: operations.audit(heal=False))
            self._finish(answer)
            if answer.granted:
                self.oracle.audited(host, answer.value.findings)

    # Questions of a test

    def claim_of(self, host: str, consumer: str) -> Any:
        """The row of the host's journal."""
        return self.oracle.rows(self.hosts[host]).get(uuid_of(consumer))

    def offers_nothing_needed(self, host: str) -> None:
        """What is claimed or used there is reserved now. Raises Violation."""
        self.oracle.nothing_needed_is_offered(self.hosts[host])

    def reserved(self, host: str) -> dict[tuple[str, str], int]:
        """{(provider uuid, class): what is reserved}"""
        return {
            (provider.uuid, name): inventory.reserved
            for provider in self.network.model.tree(self.hosts[host].uuid)
            for name, inventory in provider.inventories.items()
        }

    def unfinished_moves(self, host: str) -> set[str]:
        """The names of the migrations that the host's journal has, and that have not ended."""
        ended = ("confirmed", "reverted", "deleted")
        moves = self.oracle.moves(self.hosts[host])
        return {self.oracle.name(str(move["migration"])) for move in moves if move["state"] not in ended}

    def held(self, consumer: str) -> dict[str, int]:
        """What Placement holds for the consumer, by class."""
        return _sum(self.network.holdings().get(uuid_of(consumer), {}))


class Teller:
    """A host's verbs."""

    def __init__(self, story: Story, host: str) -> None:
        self._story = story
        self._host = host

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return partial(getattr(self._story, verb), self._host)


def _sum(allocations: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """{class: amount} over all providers."""
    total: dict[str, int] = {}
    for amounts in allocations.values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return total


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
