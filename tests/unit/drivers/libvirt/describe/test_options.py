"""The options: their defaults, what they mean, which match nothing on a host, and which fit it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from kits.recorded_cards import A100, NIC0, NIC1, SETTINGS, T4, cards
from oslo_config import cfg

from agent.config.options import own_suggestions, propose
from agent.driver import Cell, DeclaredCarving, DriverSettings, HostSettings, Topology
from agent.errors import SettingsError
from agent.providers.divided_cards import MIXED_SIZES
from drivers.host.sysfs import CHECKS
from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.mixed_sizes import contradictions
from drivers.libvirt.describe.options import (
    OPTIONS,
    LibvirtOptions,
    declared_carving,
    device_settings,
    health_checks,
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
        ({"image_cache_path": "cache"}, "image_cache_path 'cache' must be an absolute path"),
        ({"sysfs_path": "sys"}, "sysfs_path 'sys' must be an absolute path"),
        ({"image_cache_path": "/cache", "storage_pools": ["a"]}, "with storage_pools, set reserved_host_d"),
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
        (
            {"devices": {"enabled_mdev_types": ("a",)}, "mdev_a": {"mdev_class": "!"}},
            r"\[mdev_a\]: '!' has no letter or digit",
        ),
        (
            {"devices": {"mixed_size_cards": ("84:00.0=A40",)}},
            "mixed_size_cards: '84:00.0=A40': '84:00.0' is",
        ),
        ({"devices": {"vram_cards": ("0000:84:00.0=20480",)}}, "vram_cards: '0000:84:00.0=20480' is not as"),
        ({"devices": {"vram_cards": ("84:00.0=8/4",)}}, "vram_cards: '84:00.0=8/4': '84:00.0' is no"),
        ({"devices": {"vram_cards": ("0000:84:00.0=8/4", "0000:84:00.0=8/2")}}, "address is there twice"),
        ({"devices": {"vram_cards": ("0000:84:00.0=8/0",)}}, "or a size of 8/0 is 0, or more than the 8 MiB"),
        ({"devices": {"vram_cards": ("0000:84:00.0=8/16",)}}, "a size of 8/16 is 0, or more than the 8 MiB"),
        (
            {"devices": {"vram_cards": ("0000:84:00.0=8/4",), "mixed_size_cards": ("0000:84:00.0=A40",)}},
            "0000:84:00.0 is in mixed_size_cards, too",
        ),
        ({"devices": {"mixed_size_cards": ("0000:84:00.0=A1",)}}, "'0000:84:00.0=A1' names no table"),
        (
            {"devices": {"mixed_size_cards": ("0000:84:00.0=A40", "0000:84:00.0 = A40")}},
            "its address is there twice",
        ),
        (
            {"devices": {"mixed_size_cards": ("0000:84:00.0=A40",), "enabled_mdev_types": ("a", "b", "c")}},
            "mixed_size_cards names 0000:84:00.0, for which the types a and b are both VGPU",
        ),
        (
            {
                "devices": {"mixed_size_cards": ("0000:84:00.0=A40",), "enabled_mdev_types": ("a", "b")},
                "mdev_b": {"device_addresses": ("0000:84:00.0",)},
            },
            "for which the types a and b are both VGPU",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_connected(groups: Groups, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        LibvirtDriver.create(DriverSettings("node1", options=groups))


def test_cards_in_mixed_size_mode_have_types_of_different_classes() -> None:
    """A type that is for other cards only may have the class of one of these."""
    found = device_settings(
        {
            "devices": {
                "mixed_size_cards": ("0000:84:00.0=A100 40 GB", " 0000:85:00.0 = A40 "),
                "enabled_mdev_types": ("a", "b", "c"),
            },
            "mdev_b": {"mdev_class": "large"},
            "mdev_c": {"device_addresses": ("0000:42:00.0",)},
        }
    )
    assert found.mixed == {
        "0000:84:00.0": MIXED_SIZES["A100 40 GB"],
        "0000:85:00.0": MIXED_SIZES["A40"],
    }


def test_each_amount_of_vram_is_a_type_of_all_cards_that_have_it() -> None:
    groups = {"devices": {"vram_cards": ("0000:03:00.0=20480/2048/8192", "0000:04:00.0=16384/8192")}}
    found = device_settings(groups)
    small, large = found.mdevs
    assert small == MdevSpec("vram-2048", frozenset({"0000:03:00.0"}), "CUSTOM_VRAM_2048MB")
    assert large.addresses == {"0000:03:00.0", "0000:04:00.0"} == found.mixed.keys() and large.is_vram
    carving = declared_carving(groups["devices"], found)
    assert carving.mixed == found.mixed.keys()
    assert [carving.allows("vram-2048", "", f"0000:0{bus}:00.0") for bus in (3, 4)] == [True, False]
    told = list(contradictions(FACTS, found))
    assert [each.split(",")[0] for each in told] == [
        f"[devices] vram_cards names 0000:0{bus}:00.0" for bus in (3, 4)
    ]


def test_mig_instances_are_a_profile_and_a_place_each() -> None:
    cards = {
        "0000:84:00.0": ("3g.20gb:0", "1g.5gb+me:4"),
        "0000:85:00.0": ("7g.80gb:0",),
        "0000:86:00.0": tuple(f"1g.5gb:{place}" for place in range(7)),
        "0000:87:00.0": ("2g.48gb:6", "1g.24gb-me:0", "1g.24gb+me.all:3"),
        "0000:88:00.0": ("4g.20gb:0", "3g.20gb:4"),
    }
    groups = {"mig_instances": [f"{card}={'/'.join(instances)}" for card, instances in cards.items()]}
    assert declared_carving(groups, SETTINGS).mig == cards
    for wrong, why in {
        **dict.fromkeys(("3g.20gb", "3g.20gb:0/", "3g:0", "9:0", "3g.20gb:0 -dgi"), "is not as"),
        **dict.fromkeys(("1g.5gb:00", "1g.5gb:03", "1g.05gb:0"), "is not as"),
        **dict.fromkeys(("3g.20gb:9", "3g.20gb:5", "7g.40gb:1", "4g.96gb:9"), "no card has the place of"),
        "3g.20gb:0/3g.20gb:0": "both 3g.20gb:0 and 3g.20gb:0",
        "3g.20gb:4/1g.5gb:0/3g.20gb:2": "both 3g.20gb:4 and 3g.20gb:2",
        "7g.40gb:0/1g.5gb:3": "both 7g.40gb:0 and 1g.5gb:3",
    }.items():
        with pytest.raises(SettingsError, match=rf"\[devices\] mig_instances.*{why}"):
            declared_carving({"mig_instances": (f"0000:84:00.0={wrong}",)}, SETTINGS)


def test_ports_are_restored_only_where_the_operator_says_so() -> None:
    assert [declared_carving({"restore_ports": told}, SETTINGS).ports for told in (True, False, None)] == [
        *(True, False, False)
    ]


@pytest.mark.parametrize(("told", "checks"), [(None, set(CHECKS)), (["link"], {"link"}), ([], set())])
def test_all_of_a_device_s_health_is_checked_unless_the_operator_says_what(
    told: list[str] | None, checks: set[str]
) -> None:
    assert health_checks({"devices": {"health_checks": told}}) == checks
    assert health_checks({}) == set(CHECKS)


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
    assert len(sentences) == 4, "nvidia-11 is on no function of the card that is not there"
    with_vendors_driver = replace(FACTS, vgpu_types={"0000:84:00.1": "471"})
    assert len(list(unmatched_options(with_vendors_driver, settings))) == 2, (
        "which shows no type that none has"
    )


ONE = Topology((Cell(0, frozenset({0, 1}), 4096),), frozenset({0, 1}))
TWO = Topology((*ONE.cells, Cell(1, frozenset({2, 3}), 4096)), frozenset(range(4)))


def test_cells_are_reported_where_there_are_several() -> None:
    assert suggestions(ONE, ()) == ()
    (found,) = suggestions(TWO, ())
    assert (found.group, found.option, found.value, found.certain) == ("libvirt", "report_numa", "true", True)


NETWORK = '{{"address": "{}", "physical_network": "physnet1"}}'


@pytest.mark.parametrize(
    ("moment", "functions", "there"),
    [
        ("boot", [], (0, 0)),
        ("vfs", [("sriov_vfs", "0000:41:00.0=4, 0000:81:00.0=2, 0000:84:00.0=4")], (4, 2)),
    ],
)
def test_what_devices_are_for_is_left_to_the_operator(
    moment: str, functions: list[tuple[str, str]], there: tuple[int, int]
) -> None:
    """Cards that can be divided are divided, the others are given whole, and no function is given beside."""
    found = suggestions(ONE, cards(moment).values())
    assert [(each.option, each.value) for each in found] == [
        ("enabled_mdev_types", "nvidia-11"),
        *functions,
        ("device_spec", NETWORK.format(NIC0)),
        ("device_spec", NETWORK.format(NIC1)),
        ("device_spec", '{"vendor_id": "10de", "product_id": "1eb8"}'),
    ]
    assert not any(each.certain for each in found)
    told = "\n".join(each.why for each in found)
    assert "nvidia-11 (GRID M60-0B) on 0000:42:00.0, 0000:82:00.0" in told
    assert (f"nvidia-471 (GRID A100-10C) on {A100}" in told) is (moment == "vfs")
    for name, number in zip(("enp65s0", "enp129s0"), there, strict=True):
        assert f"{name} can have 7 virtual functions, and has {number}" in told
    assert f"whole: {T4}, 0000:83:00.0. Leave" in told


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
        "execution_quanta": ["0000:03:00.0=25/500000", "0000:04:00.0=0/0"],
        "context_quotas": ["0000:03:00.0=8192/32", "0000:04:00.0=65535/0"],
    }
    assert declared_carving(options, CARVED) == DeclaredCarving(
        {"0000:41:00.0": 4, "0000:81:00.0": 0},
        {"0000:83:00.0": "vfio-pci"},
        {"0000:41:00.0": "mlx5_vfio_pci"},
        {"0000:84:00.1": "nvidia-471"},
        {"nvidia-471": frozenset({"0000:84:00.0"}), "nvidia-11": frozenset()},
        quotas={
            "execution_quanta": {"0000:03:00.0": "25/500000", "0000:04:00.0": "0/0"},
            "context_quotas": {"0000:03:00.0": "8192/32", "0000:04:00.0": "65535/0"},
        },
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
        ("execution_quanta", "0000:03:00.0=25"),
        ("execution_quanta", "0000:03:00.0=25/"),
        ("execution_quanta", "0000:03:00.0=025/500000"),
        ("execution_quanta", "0000:03:00.0=25/500000/low"),
        ("context_quotas", "0000:03:00.0=8192"),
        ("context_quotas", "0000:03:00.0=0/32"),
        ("context_quotas", "0000:03:00.0=08192/32"),
        ("context_quotas", "0000:03:00.0=655360/32"),
    ],
)
def test_what_names_no_device_or_no_value_is_refused(option: str, text: str) -> None:
    with pytest.raises(SettingsError, match=rf"\[devices\] {option}"):
        declared_carving({option: [text]}, CARVED)


def test_an_address_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="twice"):
        declared_carving({"sriov_vfs": ["0000:41:00.0=4", "0000:41:00.0=2"]}, CARVED)
