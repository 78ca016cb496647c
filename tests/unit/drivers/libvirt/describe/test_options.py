"""The options: their defaults, what they mean, which match nothing on a host, and which fit it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from kits.recorded_cards import A100, NIC0, SETTINGS, T4, cards
from oslo_config import cfg

from agent.config.options import own_suggestions, propose
from agent.driver import Cell, DeclaredCarving, DriverSettings, HostSettings, Topology
from agent.errors import SettingsError
from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.options import (
    OPTIONS,
    LibvirtOptions,
    declared_carving,
    device_settings,
    suggestions,
    unmatched_options,
)
from drivers.libvirt.driver import LibvirtDriver


def test_the_declared_defaults_are_the_ones_that_hold() -> None:
    conf = cfg.ConfigOpts()
    conf.register_opts(OPTIONS["libvirt"], group="libvirt")
    conf([])
    declared = {option.dest: conf.libvirt[option.dest] for option in OPTIONS["libvirt"]}
    assert LibvirtOptions.of(declared) == LibvirtOptions()
    assert LibvirtOptions.of(dict.fromkeys(declared)) == LibvirtOptions(), "None: it is not set"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"storage_pools": ["a", "a"]}, "names a pool twice"),
        ({"connection_uri": "qemu:system"}, "is no libvirt URI"),
        ({"images_path": "images"}, "must be an absolute path"),
    ],
)
def test_options_that_make_no_sense(values: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LibvirtDriver.create(DriverSettings("node1", options={"libvirt": values}))


def test_cpu_sets_that_overlap_are_refused_before_anything_is_asked() -> None:
    both = HostSettings(cpu_shared_set=frozenset({1}), cpu_dedicated_set=frozenset({1}))
    with pytest.raises(SettingsError, match="both name CPU 1"):
        LibvirtDriver.create(DriverSettings("node1", both))


Groups = Mapping[str, Mapping[str, object]]


def test_nothing_said_is_nothing_offered() -> None:
    assert device_settings({}) == DeviceSettings()


def test_types_with_their_groups_in_the_operator_s_order() -> None:
    found = device_settings(
        {
            "devices": {"enabled_mdev_types": ("nvidia-35", "i915-GVTg_V5_4")},
            "mdev_nvidia-35": {
                "device_addresses": ("0000:42:00.0", " 0000:AF:00.1"),
                "mdev_class": "vdesk",
                "max_instances": 3,
            },
            "mdev_i915-gvtg_v5_4": {"device_addresses": (), "mdev_class": "VGPU", "max_instances": None},
            "sriov_nic": {"resource_provider_bandwidths": ("eth0:1000:", "eth1:5:6")},
        }
    )
    assert found.mdevs == (
        MdevSpec("nvidia-35", frozenset({"0000:42:00.0", "0000:af:00.1"}), "CUSTOM_VDESK", 3),
        MdevSpec("i915-GVTg_V5_4"),
    )
    assert found.bandwidth == {"eth0": (1000, 0), "eth1": (5, 6)}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"mdev_nvidia-35": {}},
            r"\[mdev_nvidia-35\] is of a type that \[devices\] enabled_mdev_types does not",
        ),
        (
            {"devices": {"enabled_mdev_types": ("a",)}, "mdev_a": {"device_addresses": ("42:00.0",)}},
            r"\[mdev_a\]: '42:00.0' is not a PCI address",
        ),
        (
            {
                "devices": {"enabled_mdev_types": ("a", "b")},
                "mdev_a": {"device_addresses": ("0000:42:00.0",)},
                "mdev_b": {"device_addresses": ("0000:42:00.0",)},
            },
            r"\[mdev_b\] device_addresses names 0000:42:00.0, as \[mdev_a\] does",
        ),
        (
            {"sriov_nic": {"resource_provider_bandwidths": ("eth0",)}},
            "'eth0' is not INTERFACE:EGRESS:INGRESS",
        ),
        ({"sriov_nic": {"resource_provider_bandwidths": ("e:1:2", "e:1:2")}}, "its interface is there twice"),
        ({"sriov_nic": {"resource_provider_bandwidths": ("e:x:2",)}}, "invalid literal"),
        ({"sriov_nic": {"resource_provider_bandwidths": ("e:-1:2",)}}, "has a negative number"),
        ({"pci": {"device_spec": ("{}",)}}, "it names no device"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_connected(groups: Groups, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LibvirtDriver.create(DriverSettings("node1", options=groups))


FACTS = DeviceFacts(tuple(cards("vfs").values()))


def test_options_that_match_are_not_named() -> None:
    assert list(unmatched_options(FACTS, SETTINGS)) == []
    assert list(unmatched_options(FACTS, DeviceSettings())) == []


def test_a_spec_that_matches_nothing_is_named_by_its_number_and_its_selection() -> None:
    (extra,) = parse_device_specs(('{"vendor_id": "dead", "product_id": "beef"}',))
    (sentence,) = unmatched_options(FACTS, replace(SETTINGS, specs=(*SETTINGS.specs, extra)))
    number = len(SETTINGS.specs) + 1
    assert sentence.startswith(f"[pci] device_spec number {number} (vendor_id dead, product_id beef)")


def test_types_addresses_and_interfaces_that_are_not_there_are_named() -> None:
    settings = DeviceSettings(
        mdevs=(MdevSpec("nvidia-11", frozenset({"0000:99:00.0"})), MdevSpec("nvidia-1000")),
        bandwidth={"eth99": (1, 1)},
    )
    sentences = list(unmatched_options(FACTS, settings))
    assert any("0000:99:00.0" in sentence for sentence in sentences)
    assert any("nvidia-1000" in sentence for sentence in sentences)
    assert any("eth99" in sentence for sentence in sentences)


ONE = Topology((Cell(0, frozenset({0, 1}), 4096),), frozenset({0, 1}))
TWO = Topology((*ONE.cells, Cell(1, frozenset({2, 3}), 4096)), frozenset(range(4)))


def test_cells_are_reported_where_there_are_several() -> None:
    assert suggestions(ONE, ()) == ()
    (found,) = suggestions(TWO, ())
    assert (found.group, found.option, found.value, found.certain) == ("libvirt", "report_numa", "true", True)


def test_what_devices_are_for_is_left_to_the_operator() -> None:
    found = suggestions(ONE, cards("vfs").values())
    assert found and not any(each.certain for each in found)
    told = "\n".join(f"{each.option} = {each.value}  {each.why}" for each in found)
    assert "nvidia-11" in told and A100 in told
    assert f'{{"address": "{NIC0}", "physical_network": "physnet1"}}' in told
    assert "can have 7 virtual functions, and has 4" in told
    assert '"product_id": "1eb8"' in told and T4 in told


def test_the_functions_that_are_there_are_what_a_reboot_is_to_bring_back() -> None:
    (found,) = [each for each in suggestions(ONE, cards("vfs").values()) if each.option == "sriov_vfs"]
    assert f"{NIC0}=4" in found.value.split(", ") and not found.certain
    assert not any(each.option == "sriov_vfs" for each in suggestions(ONE, cards("boot").values()))


def test_a_proposal_reads_as_a_file() -> None:
    text = propose((*own_suggestions("node1", "libvirt", TWO), *suggestions(TWO, cards("vfs").values())))
    lines = text.splitlines()
    assert {"[DEFAULT]", "host = node1", "reserved_host_memory_mb = 512", "report_numa = true"} <= set(lines)
    assert any(line.startswith("#enabled_mdev_types = nvidia-") for line in lines)
    assert not any(len(line) > 110 for line in lines)


CARVED = DeviceSettings(mdevs=(MdevSpec("nvidia-471", frozenset({"0000:84:00.0"})), MdevSpec("nvidia-11")))


def test_the_options_say_what_is_to_be_there() -> None:
    options = {
        "sriov_vfs": ["0000:41:00.0=4", "0000:81:00.0 = 0"],
        "driver_overrides": ["0000:83:00.0=vfio-pci", "0000:41:00.0/vfs=mlx5_vfio_pci"],
        "vgpu_types": ["0000:84:00.1=nvidia-471"],
    }
    assert declared_carving(options, CARVED) == DeclaredCarving(
        {"0000:41:00.0": 4, "0000:81:00.0": 0},
        {"0000:83:00.0": "vfio-pci"},
        {"0000:41:00.0": "mlx5_vfio_pci"},
        {"0000:84:00.1": "nvidia-471"},
        {"nvidia-471": frozenset({"0000:84:00.0"}), "nvidia-11": frozenset()},
    )
    assert declared_carving({}, DeviceSettings()) == DeclaredCarving()


def test_a_type_is_allowed_on_the_functions_and_cards_that_name_it() -> None:
    declared = declared_carving({}, CARVED)
    assert declared.allows("nvidia-471", "0000:84:00.1", "0000:84:00.0")
    assert not declared.allows("nvidia-471", "0000:85:00.1", "0000:85:00.0")
    assert declared.allows("nvidia-11", "0000:42:00.0", "0000:42:00.0")
    assert not declared.allows("nvidia-12", "0000:42:00.0", "0000:42:00.0")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("sriov_vfs", "0000:41:00.0"),
        ("sriov_vfs", "0000:41:00.0=many"),
        ("sriov_vfs", "*:41:*.*=4"),
        ("sriov_vfs", "0000:41:00.0/vfs=4"),
        ("sriov_vfs", "../x=4"),
        ("driver_overrides", "0000:41:00.0=../../x"),
        ("driver_overrides", "/vfs=vfio-pci"),
        ("vgpu_types", "0000:84:00.1=nvidia-99"),
    ],
)
def test_what_names_no_device_or_no_value_is_refused(option: str, text: str) -> None:
    with pytest.raises(SettingsError, match=rf"\[devices\] {option}"):
        declared_carving({option: [text]}, CARVED)


def test_an_address_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="twice"):
        declared_carving({"sriov_vfs": ["0000:41:00.0=4", "0000:41:00.0=2"]}, CARVED)
