"""The libvirt driver's model of a recorded host under an agent, for tests of its reshapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.claims.claim import Claim
from agent.driver import (
    Description,
    Driver,
    DriverSettings,
    Guest,
    GuestState,
    HostSettings,
    Topology,
)
from agent.placement.client import ConsumerAllocations
from agent.tree import Inventory, Provider
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, GuestDomain
from drivers.libvirt.describe.host import HostModel, ModelSettings, build_model
from kits.libvirt_model import FACTS
from kits.libvirt_model import HOST as RECORDED
from kits.libvirt_node import domain_uuid
from kits.reshape import HOST, ROOT, World
from kits.tracker import request

M60, A100 = (f"{HOST}_pci_0000:{bus}:00.0" for bus in ("42", "84"))
NIC0, NIC1 = f"{HOST}_net_enp65s0", f"{HOST}_net_enp129s0"
CELL0, CELL1 = f"{HOST}_numa0", f"{HOST}_numa1"
ON_M60, ON_M60_TOO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
ON_A100, DEFINED = "33333333-3333-4333-8333-333333333333", "55555555-5555-4555-8555-555555555555"
VF0, VF1 = "0000:41:10.2", "0000:81:10.0"
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000}
SHARE = {name: amount // 4 for name, amount in BANDWIDTH.items()}
SPEC = '{"vendor_id": "8086", "product_id": "10ca"%s}'
A, B, C, D, E = (domain_uuid(number) for number in range(1, 6))
PINNED = "<cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/></cputune>"
SHARED = HostSettings(reserved_host_memory_mb=0)
DEDICATED = replace(SHARED, cpu_shared_set=frozenset({0, 1}), cpu_dedicated_set=frozenset({2, 3}))


def devices(*types: MdevSpec, vf: str = "") -> DeviceSettings:
    wanted = types or (MdevSpec("nvidia-11"), MdevSpec("nvidia-471"))
    bandwidth = tuple(BANDWIDTH.values())
    return DeviceSettings(
        parse_device_specs((SPEC % vf,)), wanted, {"enp65s0": bandwidth, "enp129s0": bandwidth}
    )


class Recorded(Driver):
    """The libvirt driver without libvirt: a recorded host with domains in `xml`.

    `memory` is the last model, from which the next one takes its unit records and its history.
    """

    def __init__(self, xml: tuple[str, ...] = ()) -> None:
        self.host = RECORDED
        self.facts = FACTS["domains"]
        self.xml = xml
        self.states: dict[str, GuestState] = {}
        self.settings = ModelSettings(HOST, SHARED, devices())
        self.memory: HostModel | None = None
        self.boot = "boot"

    @classmethod
    def create(cls, settings: DriverSettings) -> Recorded:
        raise NotImplementedError

    def _model(self) -> HostModel:
        dedicated = self.settings.host.cpu_dedicated_set or frozenset()
        domains = [parse_domain(text) for text in self.xml]
        states = [self.states.get(domain.uuid, GuestState.RUNNING) for domain in domains]
        self.memory = build_model(
            self.host,
            self.facts,
            [
                GuestDomain(guest_of(domain, state, 0, dedicated), domain)
                for domain, state in zip(domains, states, strict=True)
            ],
            self.memory.units if self.memory else {},
            self.boot,
            self.settings,
            self.memory.history if self.memory else None,
        )
        return self.memory

    def describe(self) -> Description:
        return self._model().description

    def guests(self) -> tuple[Guest, ...]:
        return self._model().guests

    def topology(self) -> Topology:
        return self._model().topology

    def watch(self, changed: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.driver = Recorded()

    def show(self, *, facts: DeviceFacts | None = None, **settings: object) -> None:
        """Change the recorded devices or the settings, and run two passes; the second must have no work."""
        self.driver.facts = facts or self.driver.facts
        self.driver.settings = replace(self.driver.settings, **settings)
        self.world.reconciler.replace_driver(self.driver)
        report = self.world.again()
        assert (report.error, report.pending) == (None, None), (report.error, report.pending)
        self.world.check()
        assert self.world.again().operations == 0, "the second pass does nothing"

    def undone_and_done_again(self) -> None:
        """Undo the last reshape, and do it again; the state must be the one before and the one after it."""
        before = self.state()
        (*_, receipt) = self.world.journal.reshapes(done=True)
        (undone,) = self.world.ask(receipt)
        assert undone.undoes == receipt
        self.world.check()
        assert self.state() != before
        self.world.ask()
        self.world.check()
        assert self.state() == before

    def state(self) -> object:
        return self.world.totals(), {who: self.world.placed(who) for who in (A, B, C, D, E)}

    def claim(self, consumer: str) -> Claim:
        found = self.world.tracker.claim_of(consumer)
        assert found is not None
        return found

    def units(self, consumer: str) -> dict[str, dict[str, tuple[str, ...]]]:
        """{provider name: {class: units}} of its claim."""
        names = {provider.uuid: provider.name for provider in self.world.tree()}
        return {
            names[uuid]: {name: tuple(units) for name, units in classes.items()}
            for uuid, classes in self.claim(consumer).units.items()
        }

    def flat(self, **devices: int) -> None:
        """Create the host in Placement as another agent reported it: everything on its root."""
        raw = self.world.raw
        generation = raw.create_provider(Provider(ROOT, HOST))
        totals = {"VCPU": 4, "MEMORY_MB": 2916, "DISK_GB": 40, **devices}
        raw.put_inventories(ROOT, generation, {name: Inventory(n, max_unit=n) for name, n in totals.items()})

    def hold(self, consumer: str, kind: str = "INSTANCE", **amounts: int) -> None:
        """Write an allocation on the root, as a scheduler does."""
        self.hold_on(consumer, {HOST: amounts}, kind)

    def hold_on(self, consumer: str, placed: dict[str, dict[str, int]], kind: str = "INSTANCE") -> None:
        """As if Placement had held it before the guest ran: what is reserved for it goes back first."""
        context = self.world.tracker._context
        reserved = self.world.tracker.view.unheld().get(consumer, {})
        for uuid, (generation, inventories) in context._without_reserved(consumer, reserved).items():
            self.world.raw.put_inventories(uuid, generation, inventories)
            context.placement.taken_back += 1
        allocations = {self.world.uuid(name): amounts for name, amounts in placed.items()}
        self.world.raw.write_allocations(
            ConsumerAllocations(consumer, allocations, None, "demo", "admin", kind)
        )

    def adopt(self, consumer: str, placed: dict[str, dict[str, int]]) -> Claim:
        """Write an allocation as a scheduler does, and claim it for its running guest."""
        self.hold_on(consumer, placed)
        wanted: dict[str, int] = {}
        for amounts in placed.values():
            wanted |= {name: wanted.get(name, 0) + amount for name, amount in amounts.items()}
        return self.world.tracker.claim(request(consumer, **wanted)).claim
