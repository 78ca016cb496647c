"""What every driver must do. To test another driver, add a function that makes it to DRIVERS."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import os_traits
import pytest
from kits.libvirt_node import domain, recorded_domain, write_node
from kits.paths import CHECKOUT

from agent.driver import Driver, DriverSettings, HostSettings
from agent.errors import DriverUnavailable
from drivers.fake.driver import FakeDriver, default_host
from drivers.libvirt.driver import LibvirtDriver

SHARED = HostSettings(reserved_host_cpus=1)
DEDICATED = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2, 4}))
NAME = re.compile(r"[A-Z0-9_]{1,255}")


def fake(settings: HostSettings, folder: Path) -> Driver:
    return FakeDriver(default_host(), DriverSettings("node1", settings))


def fake_with_cells(settings: HostSettings, folder: Path) -> Driver:
    path = folder / "host.yaml"
    text = (CHECKOUT / "drivers" / "fake" / "default.yaml").read_text()
    path.write_text(text + "report_numa: true\n")
    return FakeDriver.create(DriverSettings("node1", settings, {"fake": {"host_file": str(path)}}))


def libvirt(settings: HostSettings, folder: Path) -> Driver:
    pins = "<cputune><vcpupin vcpu='0' cpuset='2'/></cputune>"
    domains = [domain(1, inside=pins), domain(2, vcpus=3, running=False), recorded_domain("vm-both")]
    options = {"connection_uri": write_node(folder / "node.xml", domains), "images_path": str(folder)}
    return LibvirtDriver.create(DriverSettings("node1", settings, {"libvirt": options}))


DRIVERS = (fake, fake_with_cells, libvirt)


@pytest.fixture(params=DRIVERS, ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[HostSettings], Driver]]:
    made: list[Driver] = []

    def make_driver(settings: HostSettings) -> Driver:
        made.append(request.param(settings, tmp_path))
        return made[-1]

    yield make_driver
    for driver in made:
        driver.close()


Make = Callable[[HostSettings], Driver]
every_settings = pytest.mark.parametrize("settings", [SHARED, DEDICATED], ids=["shared", "dedicated"])


@every_settings
def test_the_tree_begins_with_the_host_and_parents_come_first(make: Make, settings: HostSettings) -> None:
    providers = make(settings).describe().providers
    assert (providers[0].name, providers[0].parent, providers[0].device) == ("node1", None, "host")
    known: set[str] = set()
    for provider in providers:
        assert provider.parent is None or provider.parent in known, provider.name
        assert provider.name not in known
        known.add(provider.name)
    assert sum(provider.parent is None for provider in providers) == 1
    assert len({provider.device for provider in providers}) == len(providers)


@every_settings
def test_inventories_are_what_placement_takes(make: Make, settings: HostSettings) -> None:
    for provider in make(settings).describe().providers:
        assert all(NAME.fullmatch(trait) for trait in provider.traits)
        for name, inventory in provider.inventories.items():
            assert NAME.fullmatch(name)
            assert 0 < inventory.total < 2**31
            assert 0 <= inventory.reserved <= inventory.total
        for name, units in provider.units.items():
            assert len(units) == len(set(units)) == provider.inventories[name].total


@every_settings
def test_the_traits_that_a_driver_could_report_are_standard_ones_and_not_the_clouds(
    make: Make, settings: HostSettings
) -> None:
    description = make(settings).describe()
    assert description.reportable <= set(os_traits.get_traits()) - {"COMPUTE_STATUS_DISABLED"}
    of_the_host = {
        trait for trait in description.providers[0].traits if trait.startswith(("HW_CPU_", "COMPUTE_"))
    }
    assert of_the_host and of_the_host <= description.reportable
    of_the_rest = {"HW_NUMA_ROOT", "HW_PCI_LIVE_MIGRATABLE", "HW_PCI_ONE_TIME_USE"}
    assert of_the_rest <= description.reportable


@every_settings
def test_the_topology_has_the_cpus_that_the_tree_counts(make: Make, settings: HostSettings) -> None:
    driver = make(settings)
    topology = driver.topology()
    totals = dict.fromkeys(("VCPU", "PCPU"), 0)
    for provider in driver.describe().providers:
        for name in totals.keys() & provider.inventories.keys():
            totals[name] += provider.inventories[name].total
    assert totals == {"VCPU": len(topology.shared_cpus), "PCPU": len(topology.dedicated_cpus)}
    cpus = [cpu for cell in topology.cells for cpu in cell.cpus]
    assert len(cpus) == len(set(cpus))
    assert topology.shared_cpus | topology.dedicated_cpus <= set(cpus)
    assert not topology.shared_cpus & topology.dedicated_cpus
    for cell in topology.cells:
        assert frozenset().union(*cell.siblings) == cell.cpus


@every_settings
def test_guests_come_by_uuid_with_what_they_use(make: Make, settings: HostSettings) -> None:
    guests = make(settings).guests()
    assert [guest.uuid for guest in guests] == sorted({str(UUID(guest.uuid)) for guest in guests})
    for guest in guests:
        assert all(NAME.fullmatch(name) and amount > 0 for name, amount in guest.resources.items())
        assert guest.resources.get("PCPU", 0) == sum(unit.resource_class == "PCPU" for unit in guest.units)
        assert len(set(guest.units)) == len(guest.units)


def test_what_did_not_change_is_the_very_same_object(make: Make) -> None:
    driver = make(SHARED)
    assert driver.describe() is driver.describe()
    assert driver.guests() is driver.guests()


def test_a_closed_driver_does_not_answer(make: Make) -> None:
    driver = make(SHARED)
    driver.watch(lambda why: None)
    driver.guests()
    driver.close()
    driver.close()
    for ask in (driver.describe, driver.guests, driver.topology):
        with pytest.raises(DriverUnavailable):
            ask()


def test_every_option_has_a_default_and_says_what_it_is_for() -> None:
    for driver in (FakeDriver, LibvirtDriver):
        for group, options in driver.OPTIONS.items():
            assert group
            assert all(option.help and option.help.endswith(".") for option in options)
