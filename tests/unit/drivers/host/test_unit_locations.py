from agent.driver import DescribedProvider, Guest, GuestState, UsedUnit
from drivers.host.unit_locations import UnitLocation, described_locations, locate_units

CARD = DescribedProvider("card", "n", device="pci:0000:41:00.0", units={"CUSTOM_VF": ("0000:41:02.0",)})
HOST = DescribedProvider("n", units={"PCPU": ("2",)})
LOCATIONS = described_locations((HOST, CARD))


def guest(*units: UsedUnit) -> Guest:
    uuid = "a0000000-0000-4000-8000-000000000001"
    return Guest(uuid, "one", GuestState.RUNNING, {"PCPU": 1}, units)


def test_each_described_unit_has_its_class_and_device() -> None:
    assert dict(LOCATIONS) == {
        "2": UnitLocation("PCPU", "host"),
        "0000:41:02.0": UnitLocation("CUSTOM_VF", "pci:0000:41:00.0"),
    }


def test_a_unit_gets_the_class_of_its_provider_and_devices_are_counted() -> None:
    located = locate_units(
        guest(UsedUnit("PCPU", "2", "host"), UsedUnit("SRIOV_NET_VF", "0000:41:02.0", "pci:0000:41:02.0")),
        LOCATIONS,
    )
    assert located.units[1] == UsedUnit("CUSTOM_VF", "0000:41:02.0", "pci:0000:41:00.0")
    assert located.resources == {"PCPU": 1, "CUSTOM_VF": 1}, "pinned CPUs were counted before"


def test_a_unit_that_no_provider_has_stays_and_counts_nothing() -> None:
    unknown = UsedUnit("VGPU", "u1", "mdev:u1")
    located = locate_units(guest(unknown), LOCATIONS)
    assert (located.units, located.resources) == ((unknown,), {"PCPU": 1})


def test_a_guest_without_units_is_the_same_object() -> None:
    plain = guest()
    assert locate_units(plain, LOCATIONS) is plain
