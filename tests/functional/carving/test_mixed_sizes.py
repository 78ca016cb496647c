"""A card in mixed-size mode, or with quotas of VRAM, under the libvirt driver: Placement offers what the card
can still make, each claim has its place, the carver makes the vGPU there, and another place is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import opened, request
from kits.api_client import serving
from kits.cli_process import output_of
from kits.libvirt_node import domain, domain_uuid, recorded_devices, write_node
from kits.mixed_vgpus import A100, MixedGpu, MixedKernel
from kits.pci_tree import recorded_tree
from kits.placements import Placement, section_of
from kits.restarted import Restarting
from kits.vram_card import TOTAL_MIB, XeGpu, XeKernel, xe_devices

from agent.carving.carver import Carved, Carver, CarvingJournal
from agent.carving.files import read_plan_file
from agent.carving.kernel import Kernel
from agent.claims.claim import Claim
from agent.config.settings import load
from agent.errors import DoesNotFit
from agent.state.operators import Cordon

pytest.importorskip("libvirt")
from drivers.libvirt.driver import LibvirtDriver

VFS = tuple(f"0000:84:00.{number}" for number in (1, 2, 3, 4))
CLASSES = {"CUSTOM_VGPU_4": "468", "CUSTOM_VGPU_8": "470", "CUSTOM_VGPU_20": "472"}
OPTIONS = f"""
[devices]
enabled_mdev_types = {", ".join(f"nvidia-{number}" for number in CLASSES.values())}
mixed_size_cards = {A100}=A100 40 GB
{"".join(f"[mdev_nvidia-{number}]{chr(10)}mdev_class = {name}{chr(10)}" for name, number in CLASSES.items())}
"""
MIDDLE_GROUP = "[mdev_nvidia-470]\nmdev_class = CUSTOM_VGPU_8\n"
VRAM_CLASSES = {f"CUSTOM_VRAM_{mib}MB": str(mib) for mib in (4096, 8192, 20480)}
VRAM_OPTIONS = f"[devices]\nvram_cards = {A100}={TOTAL_MIB}/4096/8192/20480\n"
HOSTDEV = (
    "<hostdev mode='subsystem' type='pci' managed='no'><source>"
    "<address domain='0x0000' bus='0x84' slot='0x00' function='0x{}'/></source></hostdev>"
)
STEPS = 14


class Host(Restarting):
    """An agent with the libvirt driver, on a recorded host whose card is in mixed-size mode; its carver.

    With `vram` it is a card whose functions have quotas of VRAM.
    """

    def __init__(self, placement: Placement, folder: Path, *, vram: bool = False) -> None:
        self.folder, self.vram = folder, vram
        folder.chmod(0o700)
        self.tree = recorded_tree(folder, "xe" if vram else "vendor-vfio")
        self.gpu = XeGpu(self.tree.devices) if vram else MixedGpu(self.tree.devices, VFS)
        self.classes = VRAM_CLASSES if vram else CLASSES
        self.small, self.middle, self.large = self.classes
        self.state = folder / "state"
        self.state.mkdir(mode=0o700)
        self.file = folder / "plimsoll.conf"
        self.file.touch(mode=0o600)
        self.file.write_text(
            section_of(placement)
            + f"[DEFAULT]\ncompute_driver = libvirt\nhost = node1\nstate_path = {self.state}\n"
            + f"[libvirt]\nconnection_uri = test://{folder}/node.xml\nsysfs_path = {self.tree.sys}\n"
            + f"images_path = {folder}\n"
            + (VRAM_OPTIONS if vram else OPTIONS)
        )
        self.claims: dict[str, Claim] = {}
        self.guests: list[str] = []
        self.lost = ""
        self._open()

    def _open(self) -> None:
        devices = xe_devices() if self.vram else recorded_devices("vendor-vfio")
        lost = f"<name>pci_{self.lost.replace(':', '_').replace('.', '_')}</name>"
        devices = [each for each in devices if lost not in each]
        write_node(self.folder / "node.xml", self.guests, devices)
        settings = load([self.file])
        self.world = opened(settings, other_driver=LibvirtDriver.create(settings.driver))
        self.world.agent.reconcile("the start")

    def configure(self, before: str, after: str) -> None:
        """The operator changes the options, and starts the agent again."""
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))
        self.restart()

    def claim_all(self) -> None:
        """Claims of one unit each of all that the card gives; none of them gets a function of another."""
        (card,) = (each for each in self.world.operations.tree()[0] if each.name.endswith(A100))
        for name in sorted(card.inventories):
            with pytest.raises(DoesNotFit):
                while len(self.claims) <= len(VFS):
                    self.claim(name)
        units = [unit.partition("/") for each in self.claims.values() for _, _, unit in each.exact]
        assert len(units) == len({function for function, _, _ in units})
        if self.vram:  # what all of them have together
            assert sum(int(type_id[5:-2]) for _, _, type_id in units if type_id) <= TOTAL_MIB

    def close(self) -> None:
        self.world.close()

    def run_guest(self, claim: Claim, number: int) -> None:
        """The guest of a claim, with the function that its unit names; seen from the next start on."""
        (function,) = (unit.partition("/")[0] for unit in units_of(claim))
        self.guests.append(domain(number, memory_mb=64, devices=HOSTDEV.format(function[-1])))

    def claim(self, name: str, amount: int = 1, consumer: str = "") -> Claim:
        """A claim of one guest's consumer also has what `domain` gives that guest."""
        guest = {"VCPU": 1, "MEMORY_MB": 64} if consumer.startswith(domain_uuid(0)[:8]) else {}
        asked = request(**{name: amount, **guest})
        if consumer:
            asked = replace(asked, consumer=consumer)
        claim = self.world.operations.claim(asked)
        self.claims[claim.consumer] = claim
        return claim

    def release(self, consumer: str) -> None:
        self.world.operations.release(consumer)
        del self.claims[consumer]

    def carve(self) -> Carved:
        """What the unit does with the file that the agent writes."""
        self.world.agent.write_needs()
        declared = LibvirtDriver.declared_carving(load([self.file]).driver)
        kernel: Kernel
        if isinstance(self.gpu, XeGpu):
            kernel = XeKernel(self.tree.sys, self.tree.proc, self.gpu)
        else:
            kernel = MixedKernel(self.tree.sys, self.tree.proc, self.gpu)
        journal = CarvingJournal(self.folder / "run" / "journal.json")
        return Carver(kernel, journal, declared, read_plan_file(self.state)).carve()

    def check(self) -> None:
        """Each claim's vGPUs are made where its units say; Placement offers what can be made, and no more."""
        carved = self.carve()
        assert (carved.failures, carved.refusals) == ((), ())
        kind = "vram" if self.vram else "nvidia"
        units = {
            f"{function}/{kind}-{number}@{place}" for function, (number, place) in self.gpu.vgpus().items()
        }
        assert units == {unit for claim in self.claims.values() for unit in units_of(claim)}
        self.world.agent.reconcile("a test")
        for name, number in self.classes.items():
            most = self.gpu.most(number)
            offered = [self.world.has_candidate(**{name: amount}) for amount in (most, most + 1)]
            assert offered == [most > 0, False], name


def units_of(claim: Claim) -> list[str]:
    return [unit for _, _, unit in claim.exact if "@" in unit]


@pytest.fixture(params=[False, True], ids=["mixed sizes", "VRAM"])
def host(placement: Placement, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    host = Host(placement, tmp_path, vram=request.param)
    yield host
    host.close()


def test_after_each_claim_and_release_placement_offers_what_the_card_can_make(host: Host) -> None:
    dice = random.Random(17)
    host.check()
    for step in range(STEPS):
        if host.claims and dice.random() < 0.45:
            host.release(dice.choice(sorted(host.claims)))
        else:
            name = dice.choice(sorted(host.classes))
            if host.gpu.most(host.classes[name]):
                host.claim(name)
            else:
                with pytest.raises(DoesNotFit):
                    host.claim(name)
        if step == STEPS // 2:
            host.restart()
        host.check()
    assert host.world.operations.audit(heal=False).findings == ()


def test_three_sizes_are_beside_each_other_and_come_back_after_a_boot(host: Host) -> None:
    for number, name in enumerate(host.classes, 1):
        claim = host.claim(name, consumer=domain_uuid(number))
        host.check()
        host.run_guest(claim, number)
    host.restart()
    assert host.world.operations.audit(heal=False).findings == ()
    before = host.gpu.vgpus()
    assert len(before) == 3
    host.gpu.clear()
    host.restart()
    assert host.carve().failures == ()
    assert host.gpu.vgpus() == before
    host.check()
    assert host.world.operations.audit(heal=False).findings == ()


def test_a_guest_in_another_place_than_its_claim_says_is_a_finding(host: Host) -> None:
    claim = host.claim(host.middle, consumer=domain_uuid(1))
    host.check()
    host.run_guest(claim, 1)
    (unit,) = units_of(claim)
    function, place = unit.partition("/")[0], int(unit.rpartition("@")[2])
    other = next(start for start in (0, 12, 20, 32) if start != place)
    host.gpu.set_type(function, "0", "")
    host.gpu.set_type(function, *(("4096", "") if host.vram else ("470", str(other))))
    host.restart()
    findings = host.world.operations.audit(heal=False).findings
    if host.vram:  # another amount is another class
        reasons = {finding.kind: finding.reason for finding in findings}
        assert reasons.keys() == {"uses less", "uses more"}
        assert unit in reasons["uses less"] and f"{function}/vram-4096@0" in reasons["uses more"]
        host.world.operations.audit(heal=True)
        (healed,) = host.world.operations.tracker.claims().values()
        assert units_of(healed) == [unit]
        return
    (finding,) = findings
    assert finding.kind == "another unit"
    assert f"{function}/nvidia-470@{other} instead of {unit}" in finding.reason


@pytest.mark.parametrize("carved", [False, True])
def test_a_function_that_is_gone_under_its_claim_is_a_finding_and_a_sentence(
    host: Host, *, carved: bool
) -> None:
    claim = host.claim(host.middle)
    if carved:
        host.check()
    (unit,) = units_of(claim)
    host.lost = unit.partition("/")[0]
    host.restart()
    (finding,) = host.world.operations.audit(heal=False).findings
    assert (finding.kind, finding.subject) == ("vanished unit", claim.consumer)
    assert unit in finding.reason
    (reason,) = (each for each in host.world.agent.host_status.status().reasons if unit in each)
    assert "the card gives nothing else" in reason
    host.claim_all()
    assert list(host.claims.values()) == [claim]
    host.lost = ""
    host.restart()
    host.check()
    assert host.world.operations.audit(heal=False).findings == ()


def test_devices_are_functions_and_one_that_is_cordoned_gives_nothing(host: Host) -> None:
    claim = host.claim(host.large)
    (unit,) = units_of(claim)
    free = [vf for vf in VFS if vf != unit.partition("/")[0]]
    cordoned = Cordon(free[0], "", 0, 1.0)
    host.world.operations.cordon(cordoned)
    here = [each for each in host.world.operations.tracker.cordons.devices() if each.provider.endswith(A100)]
    assert [(each.unit, each.holder, each.cordon) for each in here] == [
        (unit, claim.consumer, None),
        (free[0], None, cordoned),
        *((vf, None, None) for vf in free[1:]),
    ]
    assert {each.resource_class for each in here[1:]} == {", ".join(sorted(host.classes))}
    host.world.agent.reconcile("a cordon")
    assert [host.world.has_candidate(**{host.small: number}) for number in (2, 3)] == [True, False]
    assert host.world.operations.audit(heal=False).findings == ()


def test_an_allocation_without_a_place_counts_and_gets_one_when_it_is_claimed(host: Host) -> None:
    host.check()
    (card,) = (each.uuid for each in host.world.operations.tree()[0] if each.name.endswith(A100))
    consumer = str(uuid4())
    body = {
        "allocations": {card: {"resources": {host.large: 2}}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
    }
    reply = host.world.wire.inner.request("PUT", f"/allocations/{consumer}", body, microversion="1.36")
    assert reply.status == 204, reply.body
    host.world.agent.verify()
    assert not any(host.world.has_candidate(**{name: 1}) for name in host.classes)
    host.claim(host.large, 2, consumer)


NOT_MIXED = {
    False: (f"mixed_size_cards = {A100}=A100 40 GB", ""),
    True: (VRAM_OPTIONS, '[pci]\ndevice_spec = {"address":"0000:84:00.*","resource_class":"VF"}\n'),
}
_WHOLE = f'[pci]\ndevice_spec = {{"address":"{A100}"}}\n'
WHOLE = {False: (OPTIONS, _WHOLE), True: (VRAM_OPTIONS, _WHOLE)}
NO_MIDDLE = {
    False: (OPTIONS, OPTIONS.replace("nvidia-470, ", "").replace(MIDDLE_GROUP, "")),
    True: ("/8192", ""),
}


@pytest.mark.parametrize("change", [NO_MIDDLE, NOT_MIXED, WHOLE], ids=["one size less", "not mixed", "whole"])
@pytest.mark.parametrize("carved", [False, True])
def test_a_function_of_a_claim_is_given_to_no_other_under_other_options(
    host: Host, change: dict[bool, tuple[str, str]], *, carved: bool
) -> None:
    options = host.file.read_text()
    host.claim(host.small)
    middle = host.claim(host.middle)
    if carved:
        host.check()
    # The card gives of the sizes that stay what it gave before.
    host.world.agent.reconcile("claims")
    left = {host.small: 2, host.large: 1} if change is NO_MIDDLE else {}
    assert all(host.world.has_candidate(**{name: amount}) for name, amount in left.items())
    host.configure(*change[host.vram])
    (card,) = (each for each in host.world.operations.tree()[0] if each.name.endswith(A100))
    for name in {*host.classes, *card.inventories}:
        most = left.get(name, 0)
        offered = [host.world.has_candidate(**{name: amount}) for amount in (most, most + 1)]
        assert offered == [most > 0, False], name
    host.claim_all()
    assert len(host.claims) == 2 + left.get(host.small, 0)
    if change is NO_MIDDLE:
        assert host.carve().failures == ()
        host.release(middle.consumer)
        host.claim(host.small)
    if change is WHOLE and not host.vram:
        for consumer in list(host.claims):
            host.release(consumer)
        host.world.agent.reconcile("releases")
        assert host.world.has_candidate(CUSTOM_PCI_10DE_20F1=1)
    host.configure(host.file.read_text(), options)
    assert host.world.operations.audit(heal=False).findings == ()


@pytest.mark.parametrize("claimed", [True, False])
def test_a_guest_keeps_vram_of_a_size_that_was_removed_and_the_card_gives_the_rest(
    placement: Placement, tmp_path: Path, *, claimed: bool
) -> None:
    with Host(placement, tmp_path, vram=True) as host:
        claim = host.claim(host.middle, consumer=domain_uuid(1))
        host.check()
        host.run_guest(claim, 1)
        if not claimed:
            host.release(claim.consumer)
        host.configure("/8192", "")
        kinds = {finding.kind for finding in host.world.operations.audit(heal=False).findings}
        assert kinds == (set() if claimed else {"unclaimed instance"})
        for name, most in {host.small: 3, host.middle: 0, host.large: 1}.items():
            offered = [host.world.has_candidate(**{name: amount}) for amount in (most, most + 1)]
            assert offered == [most > 0, False], name
        with pytest.raises(DoesNotFit):
            host.claim(host.middle)
        host.claim_all()
        others = (each for each in host.claims.values() if each is not claim)
        assert VFS[0] not in [unit.partition("/")[0] for each in others for unit in units_of(each)]


def test_a_function_that_was_claimed_before_its_card_had_sizes_is_given_to_no_other(host: Host) -> None:
    options = host.file.read_text()
    for function, place in (VFS[0], 0), (VFS[1], 12):
        host.gpu.set_type(function, host.classes[host.middle], "" if host.vram else str(place))
    host.configure(*NOT_MIXED[host.vram])
    claim = host.claim("CUSTOM_VF" if host.vram else host.middle)
    assert [unit for _, _, unit in claim.exact] == [VFS[0]]
    host.configure(host.file.read_text(), options)
    host.claim_all()
    host.release(claim.consumer)
    host.world.agent.reconcile("a release")
    host.claim_all()
    assert len(host.claims) > 1


def test_a_function_of_a_claim_is_not_given_by_itself_beside_another_vgpu_of_its_type(host: Host) -> None:
    if host.vram:
        pytest.skip("functions with VRAM that no option names are of one class")
    host.claim(host.middle)
    host.check()
    host.gpu.set_type(VFS[3], "470", "0")
    host.configure(*NOT_MIXED[False])
    host.claim_all()
    assert len(host.claims) == 1


def test_a_claim_before_the_agent_saw_its_vgpu_taken_away_is_carved(host: Host) -> None:
    first = host.claim(host.middle)
    host.check()
    host.release(first.consumer)
    host.carve()
    assert host.gpu.vgpus() == {}
    second = host.claim(host.middle)
    assert (second.units, second.makings) == (first.units, {})
    host.restart()
    host.check()


def test_vram_that_the_driver_shared_out_at_a_boot_is_taken_back_for_claims(
    placement: Placement, tmp_path: Path
) -> None:
    with Host(placement, tmp_path, vram=True) as host:
        claim = host.claim(host.large, consumer=domain_uuid(1))
        host.check()
        host.run_guest(claim, 1)
        host.restart()
        assert isinstance(host.gpu, XeGpu)
        host.gpu.provision()
        host.restart()
        # What the guest has counts beside what was claimed for it, until its function has that.
        assert [host.world.has_candidate(**{name: 1}) for name in host.classes] == [True, True, False]
        host.check()
        assert list(host.gpu.vgpus().values()) == [("20480", 0)]
        host.restart()
        assert host.world.operations.audit(heal=False).findings == ()


@pytest.mark.parametrize("quota", ["garb", "", "-4294967296", str(10240 << 20), "5000000000"])
def test_a_quota_that_is_no_size_of_a_function_without_a_claim_is_told(
    placement: Placement, tmp_path: Path, quota: str
) -> None:
    with Host(placement, tmp_path, vram=True) as host:
        assert isinstance(host.gpu, XeGpu)
        host.gpu.quota(VFS[3]).write_text(quota)
        for _ in range(2):
            host.world.agent.look()
        assert [VFS[3] in each for each in host.world.agent.host_status.status().reasons] == [True]


def test_a_function_that_vanished_while_it_was_carved_is_told_and_the_others_go_on(
    placement: Placement, tmp_path: Path
) -> None:
    with Host(placement, tmp_path, vram=True) as host:
        assert isinstance(host.gpu, XeGpu)
        claims = [host.claim(host.small) for _ in range(2)]
        gone, there = (unit.partition("/")[0] for claim in claims for unit in units_of(claim))
        (host.gpu.quota(gone).parent.parent / "device").unlink()
        carved = host.carve()
        assert [sentence for sentence in carved.failures if gone in sentence] == list(carved.failures)
        assert len(carved.failures) == 1 and host.gpu.mib(there) == 4096
        (host.gpu.quota(gone).parent.parent / "device").symlink_to(host.tree.devices / gone)
        host.check()


def test_what_a_card_has_left_is_counted_for_each_size_and_who_strands_it_is_told(host: Host) -> None:
    large = host.claim(host.large, consumer=domain_uuid(1))
    small = host.claim(host.small, consumer=domain_uuid(2))
    asked = request(**{host.large: 1})
    found = host.world.operations.capacity(asked)
    assert found.guests == 0
    (stranded,) = found.stranded
    assert (stranded.resource_class, stranded.holders) == (host.large, (small.consumer,))
    assert (stranded.divided, stranded.free) == (True, 1)
    host.release(large.consumer)
    assert host.world.operations.capacity(asked).guests == 1


def test_of_a_card_that_is_full_nothing_is_said_to_be_free(placement: Placement, tmp_path: Path) -> None:
    with Host(placement, tmp_path, vram=True) as host:
        for name in (host.large, host.middle, host.middle, host.small):
            host.claim(name)
        with serving(host.world.operations, tmp_path / "s"):
            said = output_of(
                tmp_path / "s", "explain", "--capacity", "--group", f"g:{host.small}=1"
            ).splitlines()
        assert said[0] == "0 guests fit" and "free, and of no use to one more" not in said
        heading = said.index("free once one of these guests is gone")
        # Without the large one, without a middle one: at least one function is free.
        assert said[heading + 2].split()[1:3] == [host.small, "1"]


def test_the_smallest_function_with_vram_enough_is_taken_and_the_same_claim_again_keeps_it(
    placement: Placement, tmp_path: Path
) -> None:
    host = Host(placement, tmp_path, vram=True)
    try:
        taken = [host.claim("CUSTOM_VRAM_MB", amount) for amount in (5000, 20480, 5000, 1)]
        assert [unit.partition("/")[2] for claim in taken for unit in units_of(claim)] == [
            "vram-8192@0",
            "vram-20480@0",
            "vram-8192@0",
            "vram-4096@0",
        ]
        host.check()
        again = replace(request(CUSTOM_VRAM_MB=5000), consumer=taken[0].consumer)
        assert host.world.operations.claim(again).units == taken[0].units
        host.release(taken[3].consumer)
        host.release(taken[1].consumer)
        with pytest.raises(DoesNotFit, match=r"CUSTOM_VRAM_MB.*the largest have 20480 MiB"):
            host.claim("CUSTOM_VRAM_MB", 20481)
        large = [host.claim(host.large), host.claim(host.small)]
        with pytest.raises(DoesNotFit) as refused:
            host.claim("CUSTOM_VRAM_MB", 8000)
        assert "None of 2 alternatives is granted" in refused.value.message
        asked = {"requests": [{"groups": [{"resources": {"CUSTOM_VRAM_MB": 4000}}]}]}
        assert host.world.operations.where(asked)["verdict"] != "fits"
        host.release(large[1].consumer)
        host.world.agent.reconcile("a release")
        assert host.world.operations.where(asked)["verdict"] == "fits"
    finally:
        host.world.close()
