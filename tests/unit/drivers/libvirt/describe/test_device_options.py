from collections.abc import Mapping

import pytest

from agent.driver import DriverSettings
from agent.errors import SettingsError
from drivers.libvirt import LibvirtDriver
from drivers.libvirt.describe.cards import MdevSpec
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.options import device_settings

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
