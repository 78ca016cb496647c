"""Which devices a guest can be given, and the remedy for those that it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.doctor.check import CheckVerdict, check_device, node_device, start_problems
from agent.driver import GroupMember, HostDevice, PassedDevice

GPU, SOUND, BRIDGE, VF = "0000:01:00.0", "0000:01:00.1", "0000:00:01.0", "0000:41:10.0"
READY = HostDevice(
    GPU,
    "x_vfio_pci",
    vfio=True,
    group="1",
    members=(
        GroupMember(BRIDGE, "pcieport", bridge=True),
        GroupMember(GPU, "x_vfio_pci", vfio=True),
        GroupMember(SOUND, "vfio-pci", vfio=True),
    ),
    reset_methods=("flr", "bus"),
    cell=0,
    near_cell=0,
    migration_drivers=("x_vfio_pci",),
)
BOUND = replace(
    READY,
    driver="nouveau",
    vfio=False,
    members=(READY.members[0], GroupMember(GPU, "nouveau"), READY.members[2]),
)
SOUND_BOUND = GroupMember(SOUND, "snd_hda_intel")


def verdicts(device: HostDevice | None, *, managed: bool = True, **holders: str) -> dict[str, str]:
    """{name: verdict} of what is not good."""
    return {
        check.name: check.verdict.value
        for check in check_device(PassedDevice(GPU, managed, device), holders)
        if check.verdict is not CheckVerdict.GOOD
    }


def problems(*devices: PassedDevice, holders: dict[str, str] | None = None) -> list[str]:
    return list(start_problems(devices, holders or {}))


def test_a_device_that_is_ready() -> None:
    assert verdicts(READY) == verdicts(READY, managed=False) == {}
    assert problems(PassedDevice(GPU, False, READY)) == []


def test_libvirt_binds_a_managed_device_and_refuses_another_one() -> None:
    assert verdicts(BOUND) == {}
    (problem,) = problems(PassedDevice(GPU, False, BOUND))
    assert "nouveau" in problem and "managed='yes'" in problem
    assert f"virsh nodedev-detach {node_device(GPU)}" in problem
    assert problems(PassedDevice(GPU, False, replace(BOUND, driver=""))) != []


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        ("shows the host's console (fb0)", "console on another card"),
        ("is the display that the host booted with", "primary one in the firmware"),
        ("has the host's root file system (nvme0n1)", "another disk controller"),
        ("has the host's default route (enp65s0)", "virtual function"),
    ],
)
def test_what_the_host_itself_needs_is_not_given_away(use: str, remedy: str) -> None:
    (problem,) = problems(PassedDevice(GPU, True, replace(BOUND, uses=(use,))))
    assert use in problem and remedy in problem


def test_a_group_with_a_bound_endpoint_is_not_viable() -> None:
    device = replace(BOUND, members=(*BOUND.members[:2], SOUND_BOUND))
    (problem,) = problems(PassedDevice(GPU, True, device))
    assert "not viable" in problem and f"{SOUND} is bound to snd_hda_intel" in problem
    assert f"virsh nodedev-detach {node_device(SOUND)}" in problem


def test_a_group_that_the_guest_gets_as_a_whole_is_viable() -> None:
    device = replace(BOUND, members=(*BOUND.members[:2], SOUND_BOUND))
    sound = replace(device, address=SOUND, driver="snd_hda_intel")
    assert problems(PassedDevice(GPU, True, device), PassedDevice(SOUND, True, sound)) == []
    unmanaged = problems(PassedDevice(GPU, True, device), PassedDevice(SOUND, False, sound))
    assert len(unmanaged) == 2, "libvirt does not bind the second one"


@pytest.mark.parametrize("driver", ["", "pci-stub", "pcieport"])
def test_a_member_that_uses_nothing_does_not_matter(driver: str) -> None:
    device = replace(BOUND, members=(*BOUND.members[:2], GroupMember(SOUND, driver)))
    assert verdicts(device) == {}


def test_a_group_is_with_one_guest_only() -> None:
    (problem,) = problems(PassedDevice(GPU, True, BOUND), holders={SOUND: "web (1234)"})
    assert f"{SOUND} by web (1234)" in problem
    (problem,) = problems(PassedDevice(GPU, True, READY), holders={GPU: "web (1234)"})
    assert "used by the guest web (1234)" in problem


def test_without_a_group_nothing_can_be_given() -> None:
    (problem,) = problems(PassedDevice(GPU, True, replace(BOUND, group=None, members=())))
    assert "intel_iommu=on" in problem


def test_a_device_that_is_not_there_and_a_bridge() -> None:
    assert verdicts(None) == {"device": "bad"}
    assert verdicts(replace(READY, bridge=True, vfio=False, driver="pcieport")) == {"driver": "bad"}


def test_a_card_with_virtual_functions_of_guests() -> None:
    card = replace(BOUND, vfs=(VF,))
    assert verdicts(card) == {"holder": "warning"}
    assert problems(PassedDevice(GPU, True, card)) == []
    (problem,) = problems(PassedDevice(GPU, True, replace(card, vfs_in_guests=(VF,))))
    assert VF in problem
    assert len(problems(PassedDevice(GPU, True, card), holders={VF: "web (1)"})) == 1


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (replace(READY, reset_methods=()), "reset"),
        (replace(READY, reset_methods=None), "reset"),
        (replace(READY, cell=2, near_cell=1), "cell"),
        (replace(READY, cell=2, near_cell=None), "cell"),
        (replace(READY, migration_drivers=()), "migration"),
        (replace(READY, becomes="vfio-pci"), "migration"),
    ],
)
def test_what_a_guest_starts_with_all_the_same_is_a_warning(device: HostDevice, name: str) -> None:
    assert verdicts(device) == {name: "warning"}
    assert problems(PassedDevice(GPU, True, device)) == []


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        (
            replace(READY, iommufd=True, own_file="vfio3"),
            "(/dev/vfio/1), and by iommufd (/dev/vfio/devices/vfio3;",
        ),
        (replace(READY, iommufd=True), "(/dev/vfio/1); not by iommufd: this kernel's VFIO"),
        (READY, "(/dev/vfio/1); not by iommufd: the kernel has no /dev/iommu (`modprobe iommufd`, if"),
        (replace(BOUND, iommufd=True), "(/dev/vfio/1); whether by iommufd is known once"),
        (replace(READY, group=None), None),
    ],
)
def test_by_which_interface_a_guest_can_get_it(device: HostDevice, sentence: str | None) -> None:
    checks = {each.name: each.sentence for each in check_device(PassedDevice(GPU, True, device), {})}
    assert checks.get("interface") is None if sentence is None else sentence in checks["interface"]


X, PLAIN = replace(READY, becomes="x_vfio_pci"), replace(READY, driver="vfio-pci")
IDLE = replace(BOUND, becomes="x_vfio_pci")
BY_SPEC = 'its [pci] device_spec says so ("live_migratable":'
AT_BOOT = "Bind x_vfio_pci to it at boot (driver_overrides)"
UNTOLD = replace(READY, driver="acme", migration_drivers=(), migration_doubt="nothing tells of acme")
NEVER = f"No VFIO driver of this kernel can migrate {GPU}: a guest with it cannot be migrated live."
DETACH = "Detach it before a live migration, or move the guest while it is shut off."
BY_HAND = """, and write managed='no' into the domain and "managed": "no" into its [pci] device_spec."""


@pytest.mark.parametrize(
    ("device", "managed", "sentence", "remedy"),
    [
        (X, True, f"A guest with {GPU} can be migrated live, with the driver x_vfio_pci.", ""),
        (X, False, f"A guest with {GPU} can be migrated live, with the driver x_vfio_pci.", ""),
        (
            replace(X, becomes="vfio-pci"),
            True,
            f"With managed='yes', this libvirt binds vfio-pci to {GPU}, which does not migrate it; "
            "x_vfio_pci could.",
            AT_BOOT + BY_HAND,
        ),
        (
            replace(X, becomes="vfio-pci"),
            False,
            f"A guest with {GPU} can be migrated live, with the driver x_vfio_pci.",
            "",
        ),
        (
            replace(X, becomes="acme_vfio_pci"),
            True,
            f"With managed='yes', this libvirt binds acme_vfio_pci to {GPU}, which is not known to migrate "
            "it; x_vfio_pci could.",
            AT_BOOT + BY_HAND,
        ),
        (
            replace(X, becomes="y_vfio_pci", migration_drivers=("x_vfio_pci", "y_vfio_pci")),
            True,
            f"A guest with {GPU} can be migrated live, with the driver y_vfio_pci.",
            "",
        ),
        (
            PLAIN,
            True,
            f"{GPU} is bound to vfio-pci, which does not migrate it; x_vfio_pci could.",
            AT_BOOT + ".",
        ),
        (
            replace(PLAIN, becomes="x_vfio_pci"),
            False,
            f"{GPU} is bound to vfio-pci, which does not migrate it; x_vfio_pci could.",
            AT_BOOT + ".",
        ),
        (
            replace(PLAIN, becomes="x_vfio_pci"),
            True,
            f"{GPU} is bound to vfio-pci, which does not migrate it; with managed='yes', this libvirt binds "
            "x_vfio_pci, which can, but the agent does not count on that.",
            AT_BOOT
            + """, or write "live_migratable": "yes" into its [pci] device_spec if all its domains have """
            "managed='yes'.",
        ),
        (IDLE, True, f"A guest with {GPU} can be migrated live, with the driver x_vfio_pci.", ""),
        (
            IDLE,
            False,
            f"{GPU} is bound to nouveau, which does not migrate it; x_vfio_pci could.",
            AT_BOOT + ".",
        ),
        (
            replace(IDLE, live_migratable=False),
            True,
            f'A guest with {GPU} cannot be migrated live: {BY_SPEC} "no").',
            DETACH,
        ),
        (
            UNTOLD,
            True,
            f"It is not known whether a guest with {GPU} can be migrated live: nothing tells of acme.",
            f"""{DETACH} If you know, write "live_migratable": "yes" or "no" into its [pci] device_spec.""",
        ),
        (replace(UNTOLD, becomes="vfio-pci"), True, NEVER, DETACH),
        (replace(UNTOLD, driver="vfio-pci"), False, NEVER, DETACH),
        (
            replace(READY, live_migratable=True, migration_drivers=()),
            True,
            f'A guest with {GPU} can be migrated live: {BY_SPEC} "yes").',
            "",
        ),
    ],
)
def test_whether_and_by_which_driver_a_guest_with_it_can_be_migrated_live(
    device: HostDevice, managed: bool, sentence: str, remedy: str
) -> None:
    checks = {each.name: each for each in check_device(PassedDevice(GPU, managed, device), {})}
    assert (checks["migration"].sentence, checks["migration"].remedy) == (sentence, remedy)
    assert (checks["migration"].verdict is CheckVerdict.GOOD) is (not remedy)


def test_the_driver_that_libvirt_binds_is_the_one_that_migrates_it() -> None:
    """Where libvirt was not asked, both checks suppose the kernel's own driver for the device."""
    for device, bound in (
        (IDLE, "x_vfio_pci"),
        (replace(IDLE, becomes="vfio-pci"), "vfio-pci"),
        (BOUND, "x_vfio_pci"),
        (replace(BOUND, migration_drivers=()), "vfio-pci"),
    ):
        checks = {each.name: each.sentence for each in check_device(PassedDevice(GPU, True, device), {})}
        assert f"; libvirt binds it to {bound} when a guest" in checks["driver"]
        assert ("x_vfio_pci." in checks["migration"]) is (bound == "x_vfio_pci")


def test_a_device_that_its_spec_leaves_to_the_host_is_not_bound_for_a_guest() -> None:
    device = replace(BOUND, managed=False)
    (problem,) = problems(PassedDevice(GPU, False, device))
    assert "its [pci] device_spec does not let libvirt bind it to vfio-pci." in problem


@pytest.mark.parametrize("mode", ["on", "devtools", "off", None])
def test_the_mode_of_a_gpu_is_told_where_it_can_be_read(mode: str | None) -> None:
    checks = {
        each.name: each for each in check_device(PassedDevice(GPU, True, replace(READY, cc_mode=mode)), {})
    }
    assert ("cc mode" in checks) is (mode is not None)
    if mode is not None:
        assert f'"cc_mode": "{mode}"' in checks["cc mode"].sentence


def test_every_remedy_is_there_where_something_is_not_good() -> None:
    worst = replace(BOUND, group=None, members=(), reset_methods=(), cell=1, migration_drivers=())
    for check in check_device(PassedDevice(GPU, False, worst), {GPU: "web (1)"}):
        assert bool(check.remedy) is (check.verdict is not CheckVerdict.GOOD)
        assert check.sentence.endswith(".") and GPU in check.sentence
