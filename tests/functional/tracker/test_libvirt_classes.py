"""Resource classes and recorded devices of the libvirt driver through claims, guests, moves and reshapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_model import FACTS, hostdev
from kits.libvirt_model import HOST as FLAT_HOST
from kits.libvirt_node import domain, domain_uuid
from kits.placements import Placement
from kits.recorded import A100, CELL0, CELL1, M60, NIC0, NIC1, ON_A100, ON_M60, A, B, Stage, devices
from kits.recorded_cards import NIC0 as ADDRESS
from kits.reshape import HOST, ROOT, World
from kits.tracker import request

from agent.audit.auditor import Auditor, AuditReader
from agent.audit.finding import Finding
from agent.claims.claim import UNRESTRICTED, Restriction
from agent.claims.domain_demand import DomainDemand, HostDevices, demand_of_domain
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.device_names import CC_MODES
from agent.driver import Cell, Guest, GuestState
from agent.errors import ClaimConflict, DoesNotFit, DriverDataError
from agent.fleet.answer import AskedRequest, Verdict, where
from agent.gate.decision import GateOutcome
from agent.gate.gate import GuestAdmission
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations
from drivers.host.domain_xml import read_needs
from drivers.host.sysfs import MEMORY_KINDS, MemoryCell, PmemNamespace
from drivers.libvirt.describe.bandwidth import parse_ovs
from drivers.libvirt.describe.cards import FIRST_CPULESS, MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import PEERS, DeviceFacts, DeviceSettings
from drivers.libvirt.describe.history import lost_mdevs
from drivers.libvirt.describe.host import with_other_devices
from drivers.libvirt.describe.memory import parse_pmem_namespaces
from drivers.libvirt.xml import DomainCapabilities, Version

# Bandwidth of bridges and packet rates of a switch, and the disk of cached images, on a whole host


SETTINGS = parse_ovs(
    {
        "bridge_mappings": ["physnet0:br-ex", "physnet1:br-two"],
        "resource_provider_bandwidths": ["br-ex:1000:1000", "br-two:5000:5000"],
        "resource_provider_packet_processing_without_direction": [":100"],
    },
    HOST,
)


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        yield Stage(world)


def port(kilobits: int, network: str, packets: int) -> ClaimRequest:
    """A guest with a port as Neutron's request for it: one group for the network, one for the packets."""
    specs = {
        "resources_NET:NET_BW_EGR_KILOBIT_PER_SEC": str(kilobits),
        "trait_NET:CUSTOM_VNIC_TYPE_NORMAL": "required",
        f"trait_NET:CUSTOM_PHYSNET_{network}": "required",
        "resources_RATE:NET_PACKET_RATE_KILOPACKET_PER_SEC": str(packets),
        "group_policy": "none",
        "same_subtree": "_NET,_RATE",
    }
    flavor = {"vcpus": 1, "memory_mb": 128, "extra_specs": specs}
    return parse_claim({"consumer": str(uuid4()), "flavor": flavor})


def test_ports_share_a_bridge_and_the_switch(stage: Stage) -> None:
    stage.show(ovs=SETTINGS)
    tracker = stage.world.tracker
    first = tracker.claim(port(800, "PHYSNET0", 40)).claim
    placed = stage.world.placed(first.consumer)
    assert placed[f"{HOST}_ovs_br-ex"] == {"NET_BW_EGR_KILOBIT_PER_SEC": 800}
    assert placed[f"{HOST}_ovs"] == {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 40}
    with pytest.raises(DoesNotFit, match="NET_BW_EGR_KILOBIT_PER_SEC"):
        tracker.claim(port(201, "PHYSNET0", 1))
    tracker.claim(port(201, "PHYSNET1", 60))
    with pytest.raises(DoesNotFit, match="NET_PACKET_RATE"):
        tracker.claim(port(1, "PHYSNET1", 1))
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert stage.world.placed(first.consumer)[f"{HOST}_ovs"] == placed[f"{HOST}_ovs"]


def test_the_disk_of_cached_images_is_reserved(stage: Stage) -> None:
    stage.show()
    stage.driver.host = replace(stage.driver.host, image_cache_mb=5 * 1024)
    settings = replace(stage.driver.settings.host, reserved_host_disk_mb=1024)
    stage.show(host=settings)
    assert stage.world.totals()[HOST]["DISK_GB"] == 40
    with pytest.raises(DoesNotFit, match="DISK_GB"):
        stage.world.tracker.claim(request(DISK_GB=35))
    stage.world.tracker.claim(request(DISK_GB=34))


# Contexts for encrypted memory, SEV to TDX, by flavor: through claims, moves and reshapes


CONTEXT = "MEM_ENCRYPTION_CONTEXT"
SEV, ES, SNP, TDX = (f"{HOST}_{end}" for end in ("amd_sev", "amd_sev_es", "amd_sev_snp", "intel_tdx"))
SNP_OF_2 = {"sev_es": 2, "sev_snp": 0}
"""As libvirt reports a processor with SEV-SNP and two keys: the number is that of SEV-ES."""
EPC = "CUSTOM_SGX_EPC_MB"


def show(stage: Stage, report_numa: bool = False, **slots: int) -> None:
    """A host with these kinds, such as sev_es=2."""
    kinds = {kind.replace("_", "-"): count for kind, count in slots.items()}
    guests = DomainCapabilities("kvm", features=frozenset(kinds), slots=kinds)
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.show(report_numa=report_numa)


def asked(model: str, consumer: str = "", vcpus: int = 1) -> ClaimRequest:
    specs = {"hw:mem_encryption": "true", "hw:mem_encryption_model": model}
    flavor = {"vcpus": vcpus, "memory_mb": 256, "extra_specs": specs}
    return parse_claim({"consumer": consumer or str(uuid4()), "flavor": flavor})


def host_of_context(stage: Stage, consumer: str) -> str:
    (name,) = (name for name, amounts in stage.world.placed(consumer).items() if CONTEXT in amounts)
    return name


def test_each_model_is_served_by_its_own_contexts_and_no_others(stage: Stage) -> None:
    show(stage, sev=2, sev_es=1, tdx=1)
    tracker = stage.world.tracker
    for model, name in (("amd-sev", SEV), ("amd-sev-es", ES), ("intel-tdx", TDX)):
        assert host_of_context(stage, tracker.claim(asked(model)).claim.consumer) == name
    for model in ("amd-sev-es", "intel-tdx", "amd-sev-snp"):
        with pytest.raises(DoesNotFit):
            tracker.claim(asked(model))
    tracker.claim(asked("amd-sev"))
    with pytest.raises(DoesNotFit, match=CONTEXT):
        tracker.claim(asked("amd-sev"))


def test_the_keys_of_sev_es_are_given_to_guests_with_snp_where_the_processor_has_it(stage: Stage) -> None:
    show(stage, sev=1, **SNP_OF_2)
    tracker = stage.world.tracker
    first, second = (tracker.claim(asked("amd-sev-snp")).claim for _ in range(2))
    assert host_of_context(stage, first.consumer) == host_of_context(stage, second.consumer) == SNP
    for model in ("amd-sev-snp", "amd-sev-es"):
        with pytest.raises(DoesNotFit):
            tracker.claim(asked(model))
    assert host_of_context(stage, tracker.claim(asked("amd-sev")).claim.consumer) == SEV
    tracker.release(first.consumer)
    assert host_of_context(stage, tracker.claim(asked("amd-sev-snp")).claim.consumer) == SNP


@pytest.mark.parametrize(
    ("model", "slots", "name"),
    [("intel-tdx", {"tdx": 2}, TDX), ("amd-sev-snp", SNP_OF_2, SNP)],
    ids=["tdx", "snp"],
)
def test_a_resize_takes_a_second_context_and_either_end_gives_one_back(
    stage: Stage, model: str, slots: dict[str, int], name: str
) -> None:
    show(stage, **slots)
    tracker, consumer = stage.world.tracker, str(uuid4())
    tracker.claim(asked(model, consumer))
    for end in (tracker.revert_move, tracker.confirm_move):
        migration = str(uuid4())
        tracker.begin_move(asked(model, consumer, 2), MoveKind.RESIZE, migration)
        assert host_of_context(stage, migration) == host_of_context(stage, consumer) == name
        with pytest.raises(DoesNotFit, match=CONTEXT):
            tracker.claim(asked(model))
        end(migration)
        other = tracker.claim(asked(model)).claim
        tracker.release(other.consumer)
    assert stage.world.placed(consumer)[HOST]["VCPU"] == 2


@pytest.mark.parametrize(
    ("model", "slots", "name"),
    [("amd-sev", {"sev": 2}, SEV), ("amd-sev-snp", SNP_OF_2, SNP)],
    ids=["sev", "snp"],
)
def test_contexts_stay_when_the_cells_are_reported_in_the_middle_of_a_resize(
    stage: Stage, model: str, slots: dict[str, int], name: str
) -> None:
    show(stage, **slots)
    tracker, consumer, migration = stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(asked(model, consumer))
    tracker.begin_move(asked(model, consumer, 2), MoveKind.RESIZE, migration)
    for report_numa in (True, False):
        show(stage, report_numa, **slots)
        assert host_of_context(stage, migration) == host_of_context(stage, consumer) == name
    tracker.revert_move(migration)
    assert host_of_context(stage, consumer) == name
    tracker.claim(asked(model))


@pytest.mark.parametrize(("kind", "slots"), [("sev", {"sev": 2}), ("sev-snp", SNP_OF_2)], ids=["sev", "snp"])
def test_a_guest_with_encrypted_memory_and_no_claim_leaves_one_context_less(
    stage: Stage, kind: str, slots: dict[str, int]
) -> None:
    stage.driver.xml = (domain(1, inside=f"<launchSecurity type='{kind}'/>"),)
    show(stage, **slots)
    stage.world.tracker.claim(asked(f"amd-{kind}"))
    with pytest.raises(DoesNotFit, match=CONTEXT):
        stage.world.tracker.claim(asked(f"amd-{kind}"))


def test_a_kind_that_goes_away_under_a_claim_keeps_what_is_held_and_offers_no_more(stage: Stage) -> None:
    """A boot with SEV-SNP: its contexts are the pool of SEV-ES, on a provider of another name."""
    show(stage, sev=2, sev_es=2)
    tracker = stage.world.tracker
    claim = tracker.claim(asked("amd-sev-es")).claim
    kinds = {"sev": 2, "sev-es": 2, "sev-snp": 0}
    guests = DomainCapabilities("kvm", features=frozenset(kinds), slots=kinds)
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.world.reconciler.replace_driver(stage.driver)
    stage.world.again()
    assert host_of_context(stage, claim.consumer) == ES
    with pytest.raises(DoesNotFit):
        tracker.claim(asked("amd-sev-es"))


@pytest.mark.parametrize("sev", [1, 3], ids=["fewer", "more"])
def test_an_unclaimed_guest_uses_a_key_of_its_own_kind(stage: Stage, sev: int) -> None:
    stage.driver.xml = (domain(1, inside="<launchSecurity type='sev-snp'/>"),)
    show(stage, sev=sev, **SNP_OF_2)
    stage.world.tracker.claim(asked("amd-sev-snp"))
    with pytest.raises(DoesNotFit, match=CONTEXT):
        stage.world.tracker.claim(asked("amd-sev-snp"))
    for _ in range(sev):
        stage.world.tracker.claim(asked("amd-sev"))


# Confidential guests with a card

T4 = "CUSTOM_PCI_10DE_1EB8"
HOSTDEV = (
    "<hostdev mode='subsystem' type='pci' managed='yes'><source>"
    "<address domain='0x0000' bus='0x{}' slot='0x00' function='0x0'/></source></hostdev>"
)
FIRST, SECOND = (f"{HOST}_pci_0000:{bus}:00.0" for bus in ("43", "83"))


def show_cards(stage: Stage, first: str, second: str = "", qemu: Version = (10, 1, 0), **slots: int) -> None:
    """Two cards in these modes; "": none is stated."""
    specs = [
        json.dumps({"address": f"0000:{bus}:00.0"} | ({"cc_mode": mode} if mode else {}))
        for bus, mode in (("43", first), ("83", second))
    ]
    kinds = {kind.replace("_", "-"): count for kind, count in slots.items()}
    guests = DomainCapabilities("kvm", features=frozenset(kinds), slots=kinds, qemu=qemu)
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.show(
        devices=DeviceSettings(parse_device_specs(tuple(specs))),
        facts=replace(FACTS["boot"], cc_modes=stage.driver.facts.cc_modes),
    )


def see_mode(stage: Stage, mode: str) -> None:
    """What root read of the first card; "": nothing."""
    stage.show(facts=replace(stage.driver.facts, cc_modes={"0000:43:00.0": mode} if mode else {}))


def see_modes(stage: Stage, mode: str) -> None:
    """What root read of both cards."""
    modes = dict.fromkeys(("0000:43:00.0", "0000:83:00.0"), mode)
    stage.show(facts=replace(stage.driver.facts, cc_modes=modes))


def with_card(model: str = "", mode: str = "", suffix: str = "") -> ClaimRequest:
    specs = {f"resources{suffix}:{T4}": "1"} | ({f"trait{suffix}:{mode}": "required"} if mode else {})
    if model:
        specs |= {"hw:mem_encryption": "true", "hw:mem_encryption_model": model}
    flavor = {"vcpus": 1, "memory_mb": 256, "extra_specs": specs}
    return parse_claim({"consumer": str(uuid4()), "flavor": flavor})


def test_a_key_and_a_confidential_card_are_claimed_together_or_not_at_all(stage: Stage) -> None:
    show_cards(stage, "on", tdx=2)
    tracker = stage.world.tracker
    plain = tracker.claim(with_card()).claim
    assert SECOND in stage.world.placed(plain.consumer)
    with pytest.raises(DoesNotFit, match="has trait CUSTOM_CC: only guests with SEV-SNP or TDX"):
        tracker.claim(with_card())
    without = [tracker.claim(asked("intel-tdx")).claim for _ in range(2)]
    with pytest.raises(DoesNotFit, match=CONTEXT):
        tracker.claim(with_card("intel-tdx"))
    assert not stage.world.raw.provider_allocations(stage.world.uuid(FIRST)).consumers
    for claim in without:
        tracker.release(claim.consumer)
    confidential = tracker.claim(with_card("intel-tdx")).claim
    assert stage.world.placed(confidential.consumer).items() >= {FIRST: {T4: 1}, TDX: {CONTEXT: 1}}.items()
    with pytest.raises(DoesNotFit, match="lacks trait CUSTOM_CC_ON"):
        tracker.claim(with_card("intel-tdx"))


def findings(stage: Stage) -> list[Finding]:
    world = stage.world
    return list(
        Auditor(AuditReader(world.tracker, world.client, ROOT, stage.driver.guests, dict)).audit().findings
    )


def test_a_card_that_a_scheduler_gave_to_the_wrong_guest_is_not_claimed(stage: Stage) -> None:
    show_cards(stage, "on", tdx=2)
    asked_for = with_card()
    card = {stage.world.uuid(FIRST): {T4: 1}, ROOT: {"VCPU": 1, "MEMORY_MB": 256}}
    stage.world.raw.write_allocations(ConsumerAllocations(asked_for.consumer, card, None, "demo", "admin"))
    for mode, why in (("", "has trait CUSTOM_CC: only guests with"), ("off", "is in the mode off of conf")):
        see_mode(stage, mode)
        with pytest.raises(ClaimConflict, match=f"1 {T4} asked, 1 held, {why}"):
            stage.world.tracker.claim(asked_for)
    assert stage.world.tracker.claims() == {}


def test_a_card_for_developers_is_for_confidential_guests_that_ask_for_it(stage: Stage) -> None:
    show_cards(stage, "devtools", "off", **SNP_OF_2)
    with pytest.raises(DoesNotFit, match="lacks trait CUSTOM_CC_ON"):
        stage.world.tracker.claim(with_card("amd-sev-snp"))
    claim = stage.world.tracker.claim(with_card("amd-sev-snp", "CUSTOM_CC_DEVTOOLS")).claim
    assert FIRST in stage.world.placed(claim.consumer)


def test_a_card_that_no_guest_can_have_is_given_to_none(stage: Stage) -> None:
    show_cards(stage, "on", "off", qemu=(10, 0, 2), sev=1, **SNP_OF_2)
    assert ["QEMU 10.0.2 gives no device" in each for each in stage.world.again().problems] == [True]
    for request_ in (
        with_card("amd-sev-snp"),
        with_card(mode="CUSTOM_CC"),
        with_card("amd-sev", "CUSTOM_CC"),
    ):
        with pytest.raises(DoesNotFit, match="CUSTOM_CC"):
            stage.world.tracker.claim(request_)
    claim = stage.world.tracker.claim(with_card("amd-sev")).claim
    assert SECOND in stage.world.placed(claim.consumer)


@pytest.mark.parametrize(("before", "after", "model"), [("on", "off", "intel-tdx"), ("off", "on", "")])
def test_a_mode_that_changes_under_a_claim_is_a_finding_and_the_card_stays(
    stage: Stage, before: str, after: str, model: str
) -> None:
    show_cards(stage, before, "" if model else "on", tdx=2)
    claim = stage.world.tracker.claim(with_card(model)).claim
    assert findings(stage) == []
    show_cards(stage, after, "" if model else "on", tdx=2)
    (finding,) = findings(stage)
    assert (finding.kind, finding.subject) == ("wrong mode", claim.consumer)
    assert FIRST in finding.reason and "CUSTOM_CC" in finding.reason
    assert FIRST in stage.world.placed(claim.consumer)
    for other in (with_card(model), with_card(model)):
        with pytest.raises(DoesNotFit):
            stage.world.tracker.claim(other)
    show_cards(stage, before, "" if model else "on", tdx=2)
    assert findings(stage) == []


@pytest.mark.parametrize(
    ("stated", "real", "model"),
    [
        ("on", "off", "intel-tdx"),
        ("on", "devtools", "intel-tdx"),
        ("devtools", "on", "intel-tdx"),
        ("off", "on", ""),
        ("", "on", ""),
        ("", "devtools", ""),
    ],
)
def test_a_card_that_is_in_another_mode_than_is_stated_is_given_to_nobody(
    stage: Stage, stated: str, real: str, model: str
) -> None:
    """To no guest of either kind, until what root reads is what is stated; on a host of one kind as well."""
    show_cards(stage, stated, "off", tdx=2)
    see_mode(stage, real)
    (card,) = (each for each in stage.world.tree() if each.name == FIRST)
    assert {each for each in card.traits if each.startswith("CUSTOM_CC")} == {
        "CUSTOM_CC",
        f"CUSTOM_CC_{real}_NOT_{stated or 'off'}".upper(),
    }
    assert SECOND in stage.world.placed(stage.world.tracker.claim(with_card()).claim.consumer)
    why = f"is in the mode {real} of confidential computing, and by its .* it is {stated or 'off'}"
    trait = "CUSTOM_CC_DEVTOOLS" if stated == "devtools" else ""
    for request_ in (with_card("intel-tdx", trait), with_card()):
        with pytest.raises(DoesNotFit, match=why):
            stage.world.tracker.claim(request_)
    see_mode(stage, stated or "off")
    claim = stage.world.tracker.claim(with_card(model, trait)).claim
    assert FIRST in stage.world.placed(claim.consumer) and findings(stage) == []


@pytest.mark.parametrize("suffix", ["", "1"])
@pytest.mark.parametrize(
    ("stated", "real"), [("on", "on"), ("on", "off"), ("off", "off"), ("off", "on"), ("devtools", "off")]
)
def test_where_promises_a_card_to_guests_that_can_claim_it(
    stage: Stage, stated: str, real: str, suffix: str
) -> None:
    """Both cards are stated as the one mode and read as the other; docs/claims.md says who may have them."""
    show_cards(stage, stated, stated, tdx=2, sev=2)
    see_modes(stage, real)
    traits = ("", "CUSTOM_CC", "CUSTOM_CC_ON", "CUSTOM_CC_OFF", f"CUSTOM_CC_{real}_NOT_{stated}".upper())
    for model, trait in product(("", "amd-sev", "intel-tdx"), traits):
        has_mode = stated == real == ("on" if model == "intel-tdx" else "off")
        may_have = has_mode and (not trait or trait in CC_MODES[stated])
        asked_for = with_card(model, trait, suffix)
        assert (is_given(stage, asked_for), fits(stage, asked_for)) == (may_have, may_have), (model, trait)
    for trait in traits:  # encrypted, and the request does not say by what
        asked_for = with_card("", trait, suffix).with_more({CONTEXT: 1})
        may_have = stated == real and (not trait or trait in CC_MODES[stated])
        assert (is_given(stage, asked_for), fits(stage, asked_for)) == (may_have, may_have), trait


def is_given(stage: Stage, asked_for: ClaimRequest) -> bool:
    try:
        stage.world.tracker.claim(asked_for)
    except DoesNotFit:
        return False
    stage.world.tracker.release(asked_for.consumer)
    return True


@pytest.mark.parametrize("suffix", ["", "1"])
def test_where_says_why_a_card_is_for_none_of_these_guests(stage: Stage, suffix: str) -> None:
    """For a guest without encryption, however it asks for the card; and where all are in another mode."""
    show_cards(stage, "on", "on", tdx=2)
    for trait in ("", "CUSTOM_CC", "CUSTOM_CC_ON"):
        told = where(stage.world.client, [AskedRequest(with_card("", trait, suffix), {})])
        assert (told.verdict, told.fitting) == (Verdict.NEVER, 0)
        assert "only guests with SEV-SNP or TDX" in told.sentence
    see_modes(stage, "off")
    unknown_kind = with_card("", "", suffix).with_more({CONTEXT: 1})
    told = where(stage.world.client, [AskedRequest(unknown_kind, {})])
    assert told.verdict is Verdict.NEVER and "in the mode of confidential computing that" in told.sentence
    stage.show(
        facts=replace(stage.driver.facts, cc_modes={"0000:43:00.0": "off", "0000:83:00.0": "devtools"})
    )
    either = (frozenset({"CUSTOM_CC", "CUSTOM_CC_OFF_NOT_ON"}),)
    groups = [
        replace(each, required=either) if T4 in each.resources else each for each in unknown_kind.groups
    ]
    assert not fits(stage, replace(unknown_kind, groups=tuple(groups)))


@pytest.mark.parametrize(("real", "stated", "model"), [("off", "on", "intel-tdx"), ("on", "off", "")])
def test_a_mode_that_really_changes_under_a_claim_is_a_finding_and_its_guest_does_not_start(
    stage: Stage, real: str, stated: str, model: str
) -> None:
    """The claim keeps the card, a running guest too, and nothing moves; what is not read says nothing."""
    show_cards(stage, stated, "" if model else "on", tdx=2)
    claim = stage.world.tracker.claim(with_card(model)).claim
    launch = "<launchSecurity type='tdx'/>" if model else ""
    xml = domain(1, memory_mb=256, inside=launch, devices=HOSTDEV.format("43"))
    xml = xml.replace(domain_uuid(1), claim.consumer)
    vm = replace(_guest(stage, xml), state=GuestState.RUNNING)
    admission = GuestAdmission(stage.world.tracker, stage.world.client, stage.world.journal.devices)
    see_mode(stage, stated)
    assert admission.admit(vm).outcome is GateOutcome.HELD and findings(stage) == []
    see_mode(stage, real)
    for runs in (False, True):
        stage.driver.xml = (xml,) * runs
        stage.show()
        (finding,) = findings(stage)
        assert (finding.kind, finding.subject) == ("wrong mode", claim.consumer)
        assert f"{FIRST}, which is in the mode {real} of conf" in finding.reason
        assert f"device_spec it is {stated}" in finding.reason and claim.consumer in finding.reason
        with pytest.raises(ClaimConflict, match=f"has a claim of {FIRST}, which is in the mode {real} of"):
            admission.admit(vm)
    before = stage.world.placed(claim.consumer)
    assert FIRST in before and stage.world.tracker.claims()[claim.consumer].units == claim.units
    with pytest.raises(DoesNotFit, match=f"is in the mode {real} of"):
        stage.world.tracker.claim(with_card(model))
    see_mode(stage, "")
    assert admission.admit(vm).outcome is GateOutcome.HELD and findings(stage) == []
    assert stage.world.placed(claim.consumer) == before


def test_a_guest_that_is_not_encrypted_is_not_confidential_by_its_claim(stage: Stage) -> None:
    """Its domain says what it is. One that is shut off is still to be defined."""
    show_cards(stage, "on", tdx=2)
    claim = stage.world.tracker.claim(with_card("intel-tdx")).claim
    xml = domain(1, memory_mb=256, devices=HOSTDEV.format("43")).replace(domain_uuid(1), claim.consumer)
    admission = GuestAdmission(stage.world.tracker, stage.world.client, stage.world.journal.devices)
    with pytest.raises(ClaimConflict, match=f"has a claim of {FIRST}, which has trait CUSTOM_CC: only"):
        admission.admit(replace(_guest(stage, xml), state=GuestState.RUNNING))
    stage.driver.xml = (xml,)
    for state, kinds in ((GuestState.SHUTOFF, []), (GuestState.RUNNING, ["wrong mode"])):
        stage.driver.states = {claim.consumer: state}
        stage.show()
        assert [each.kind for each in findings(stage)] == kinds


@pytest.mark.parametrize("real", ["", "off"])
def test_a_trait_of_the_mode_makes_no_card_confidential(stage: Stage, real: str) -> None:
    """An operator wrote it into device_spec, or another client of Placement onto the provider."""
    show_cards(stage, "off", "off", tdx=2)
    see_mode(stage, real)
    spec = {"address": "0000:83:00.0", "traits": "CUSTOM_CC_ON"}
    stage.show(devices=DeviceSettings(parse_device_specs((json.dumps(spec), '{"address": "0000:43:00.0"}'))))
    (card,) = (each for each in stage.world.tree() if each.name == FIRST)
    stage.world.raw.put_traits(card.uuid, card.generation, card.traits | {"CUSTOM_CC_ON"})
    stage.show()
    with pytest.raises(DoesNotFit, match="lacks trait CUSTOM_CC, and the guest's memory is"):
        stage.world.tracker.claim(with_card("intel-tdx"))
    stage.world.tracker.claim(with_card())


def _guest(stage: Stage, xml: str) -> Guest:
    """The guest as the driver reads its domain."""
    before, stage.driver.xml = stage.driver.xml, (xml,)
    (found,) = stage.driver.guests()
    stage.driver.xml = before
    return found


def of_domain(stage: Stage, kind: str, bus: str = "") -> DomainDemand:
    """What `plimsoll claim --domain` claims for a domain that names a card, if it does."""
    card = HOSTDEV.format(bus) if bus else ""
    text = domain(1, inside=f"<launchSecurity type='{kind}'/>", devices=card)
    model, view = stage.driver.memory, stage.world.tracker.view
    assert model is not None
    needs = with_other_devices(read_needs(text), text, model, stage.driver.settings)
    host, offered = view.host_and_units()
    devices = HostDevices(host, offered, cells=view.host_and_cells()[1])
    return demand_of_domain(needs, ClaimRequest(A, ()), devices)


@pytest.mark.parametrize("restart", [False, True])
def test_a_mode_that_is_stated_no_more_leaves_no_trait(stage: Stage, restart: bool) -> None:
    """Also where the settings changed while the agent was down."""
    show_cards(stage, "on", tdx=2)
    for mode, traits in (
        ("off", {"CUSTOM_CC_OFF"}),
        ("devtools", {"CUSTOM_CC", "CUSTOM_CC_DEVTOOLS"}),
        ("", set()),
    ):
        if restart:
            stage.world.restart()
        show_cards(stage, mode, tdx=2)
        (card,) = (each for each in stage.world.tree() if each.name == FIRST)
        assert {each for each in card.traits if each.startswith("CUSTOM_CC")} == traits


def test_a_domain_takes_a_key_of_its_kind_and_a_card_in_its_mode(stage: Stage) -> None:
    show_cards(stage, "on", sev=1, **SNP_OF_2)
    tracker = stage.world.tracker
    demand = of_domain(stage, "sev-snp", "83")
    with pytest.raises(DoesNotFit, match="lacks trait CUSTOM_CC_ON"):
        tracker.claim(demand.request, demand.restriction)
    demand = of_domain(stage, "sev", "43")
    with pytest.raises(DoesNotFit, match="has trait CUSTOM_CC: only"):
        tracker.claim(demand.request, demand.restriction)
    demand = of_domain(stage, "sev-snp", "43")
    claim = tracker.claim(demand.request, demand.restriction).claim
    assert stage.world.placed(claim.consumer).items() >= {FIRST: {T4: 1}, SNP: {CONTEXT: 1}}.items()


def test_a_domain_of_a_kind_that_libvirt_does_not_have_is_refused(stage: Stage) -> None:
    for slots in ({"sev": 2}, {}):
        show_cards(stage, "on", **slots)
        with pytest.raises(DoesNotFit, match=CONTEXT):
            stage.world.tracker.claim(of_domain(stage, "tdx").request)


def test_a_domain_whose_keys_are_not_counted_is_refused_with_a_card_alone(stage: Stage) -> None:
    """Without a key, its claim would not tell that it may have no other card."""
    show_cards(stage, "on", tdx=0)
    for bus in ("43", "83"):
        with pytest.raises(DoesNotFit, match=CONTEXT):
            stage.world.tracker.claim(of_domain(stage, "tdx", bus).request)
    assert CONTEXT not in of_domain(stage, "tdx").request.resources


def test_a_resize_has_its_memory_for_enclaves_twice_and_a_revert_the_former(stage: Stage) -> None:
    guests = DomainCapabilities("kvm", epc={0: 96 * 2**20})
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.show()
    tracker, consumer, migration = stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(replace(request(VCPU=1, **{EPC: 32}), consumer=consumer))
    tracker.begin_move(replace(request(VCPU=1, **{EPC: 48}), consumer=consumer), MoveKind.RESIZE, migration)
    with pytest.raises(DoesNotFit, match=EPC):
        tracker.claim(request(**{EPC: 17}))
    tracker.claim(request(**{EPC: 16}))
    tracker.revert_move(migration)
    assert stage.world.placed(consumer)[f"{HOST}_numa0_sgx_epc"] == {EPC: 32}


# Memory for enclaves and memory in files, through claims and a NUMA reshape of a whole host


CELLS = [f"{HOST}_numa{cell}_sgx_epc" for cell in range(2)]
DEVICE = "<memory model='sgx-epc'><target><size unit='MiB'>{}</size></target></memory>"


def test_enclaves_have_memory_of_one_cell_through_a_reshape(stage: Stage) -> None:
    guests = DomainCapabilities("kvm", epc={0: 64 * 2**20, 1: 32 * 2**20})
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.show()
    tracker = stage.world.tracker
    asked = {"consumer": str(uuid4()), "groups": [{"suffix": "1", "resources": {EPC: 48}}]}
    claim = tracker.claim(parse_claim(asked)).claim
    for report_numa in (True, False):
        stage.show(report_numa=report_numa)
        assert stage.world.placed(claim.consumer) == {CELLS[0]: {EPC: 48}}
    with pytest.raises(DoesNotFit, match=EPC):
        tracker.claim(parse_claim({**asked, "consumer": str(uuid4())}))
    tracker.claim(request(**{EPC: 32}))
    with pytest.raises(DoesNotFit, match=EPC):
        tracker.claim(request(**{EPC: 17}))


def test_what_a_guest_has_for_enclaves_unclaimed_is_given_to_no_other(stage: Stage) -> None:
    guests = DomainCapabilities("kvm", epc={0: 64 * 2**20})
    stage.driver.host = replace(stage.driver.host, guests=guests)
    stage.driver.xml = (domain(1, devices=DEVICE.format(60)),)
    stage.show()
    with pytest.raises(DoesNotFit, match="4"):
        stage.world.tracker.claim(request(**{EPC: 5}))
    stage.world.tracker.claim(request(**{EPC: 4}))


def test_memory_in_files_is_the_hosts_memory(stage: Stage) -> None:
    stage.show(file_backed_mb=100_000)
    assert stage.world.totals()[HOST]["MEMORY_MB"] == 100_000
    (root,) = (each for each in stage.world.tree() if each.name == HOST)
    assert "COMPUTE_MEM_BACKING_FILE" in root.traits
    claim = stage.world.tracker.claim(request(MEMORY_MB=60_000)).claim
    with pytest.raises(DoesNotFit, match="MEMORY_MB"):
        stage.world.tracker.claim(request(MEMORY_MB=40_001))
    flavor = {"vcpus": 1, "memory_mb": 512, "extra_specs": {"hw:mem_page_size": "2MB"}}
    with pytest.raises(DoesNotFit):
        stage.world.tracker.claim(parse_claim({"consumer": str(uuid4()), "flavor": flavor}))
    stage.world.tracker.release(claim.consumer)
    stage.show(file_backed_mb=0)
    (root,) = (each for each in stage.world.tree() if each.name == HOST)
    assert "COMPUTE_MEM_BACKING_FILE" not in root.traits


CARDS = {card.device.address: card for card in FACTS["vfs"].cards}
VFS = [vf.address for vf in CARDS[ADDRESS].vfs]
PATHS = {address: f"/dev/vhost-vdpa-{number}" for number, address in enumerate(VFS[:2])}


def facts(paths: dict[str, str]) -> DeviceFacts:
    card = replace(CARDS[ADDRESS], vdpa=paths)
    return replace(FACTS["vfs"], cards=tuple({**CARDS, ADDRESS: card}.values()))


@pytest.fixture
def vdpa_stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        found = Stage(world)
        found.show(facts=facts(PATHS))
        yield found


def given(vdpa_stage: Stage, consumer: str) -> tuple[str, ...]:
    return vdpa_stage.units(consumer)[NIC0]["CUSTOM_VDPA"]


def test_each_claim_has_its_own_function_and_plain_claims_have_none_of_them(vdpa_stage: Stage) -> None:
    tracker = vdpa_stage.world.tracker
    claims = [tracker.claim(request(VCPU=1, CUSTOM_VDPA=1)).claim for _ in range(2)]
    assert [given(vdpa_stage, claim.consumer) for claim in claims] == [(VFS[0],), (VFS[1],)]
    with pytest.raises(DoesNotFit, match="CUSTOM_VDPA"):
        tracker.claim(request(VCPU=1, CUSTOM_VDPA=1))
    plain = tracker.claim(request(SRIOV_NET_VF=2)).claim
    exact = {unit for classes in plain.units.values() for units in classes.values() for unit in units}
    assert not exact & set(PATHS)


def test_a_guests_interface_is_its_function(vdpa_stage: Stage) -> None:
    vdpa_stage.driver.xml = (
        domain(1, devices=f"<interface type='vdpa'><source dev='{PATHS[VFS[0]]}'/></interface>"),
    )
    vdpa_stage.show()
    assert given(vdpa_stage, vdpa_stage.world.tracker.claim(request(CUSTOM_VDPA=1)).claim.consumer) == (
        VFS[1],
    )
    vdpa_stage.adopt(A, {NIC0: {"CUSTOM_VDPA": 1}})
    assert given(vdpa_stage, A) == (VFS[0],), "the one that its guest uses"


def test_a_resize_has_another_and_a_revert_the_former(vdpa_stage: Stage) -> None:
    tracker, consumer, migration = vdpa_stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(replace(request(VCPU=1, CUSTOM_VDPA=1), consumer=consumer))
    tracker.begin_move(replace(request(VCPU=2, CUSTOM_VDPA=1), consumer=consumer), MoveKind.RESIZE, migration)
    assert given(vdpa_stage, consumer) == (VFS[1],)
    tracker.revert_move(migration)
    assert given(vdpa_stage, consumer) == (VFS[0],)


def test_the_functions_stay_when_the_cells_are_reported(vdpa_stage: Stage) -> None:
    claim = vdpa_stage.world.tracker.claim(request(CUSTOM_VDPA=1)).claim
    for report_numa in (True, False):
        vdpa_stage.show(report_numa=report_numa)
        assert given(vdpa_stage, claim.consumer) == (VFS[0],)


def test_a_function_whose_device_is_away_after_a_boot_is_given_to_no_other(vdpa_stage: Stage) -> None:
    """Its vDPA device comes back later than the function itself, which is a plain one until then."""
    tracker = vdpa_stage.world.tracker
    claim = tracker.claim(request(CUSTOM_VDPA=1)).claim
    vdpa_stage.show(facts=facts({}))
    assert given(vdpa_stage, claim.consumer) == (VFS[0],)
    plain = [tracker.claim(request(SRIOV_NET_VF=1)).claim for _ in range(2)]
    assert all(NIC0 not in vdpa_stage.units(each.consumer) for each in plain), "the other card has two"
    with pytest.raises(DoesNotFit, match="while its CUSTOM_VDPA is in use"):
        tracker.claim(request(SRIOV_NET_VF=1))
    for each in plain:
        tracker.release(each.consumer)
    vdpa_stage.show(facts=facts(PATHS))
    assert given(vdpa_stage, claim.consumer) == (VFS[0],)
    assert given(vdpa_stage, tracker.claim(request(CUSTOM_VDPA=1)).claim.consumer) == (VFS[1],)


LABELS = parse_pmem_namespaces(["6GB:ns0|ns1", "BIG:ns2"])
FOUND = tuple(PmemNamespace(f"ns{n}", f"/dev/dax{n}.0", 2**30, 2**21) for n in range(3))
SMALL, BIG = "CUSTOM_PMEM_NAMESPACE_6GB", "CUSTOM_PMEM_NAMESPACE_BIG"
NVDIMM = (
    "<memory model='nvdimm'><source><path>{}</path></source>"
    "<target><size unit='GiB'>1</size></target></memory>"
)


@pytest.fixture
def pmem_stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        found = Stage(world)
        found.driver.host = replace(found.driver.host, pmem=FOUND)
        found.show(pmem=LABELS)
        yield found


def pmem_asked(labels: str, consumer: str = "") -> ClaimRequest:
    flavor = {"vcpus": 1, "memory_mb": 256, "extra_specs": {"hw:pmem": labels}}
    return parse_claim({"consumer": consumer or str(uuid4()), "flavor": flavor})


def held(pmem_stage: Stage, consumer: str) -> dict[str, tuple[str, ...]]:
    (units,) = pmem_stage.units(consumer).values()
    return units


def test_each_guest_has_its_own_namespaces_and_no_more_than_there_are(pmem_stage: Stage) -> None:
    tracker = pmem_stage.world.tracker
    both = tracker.claim(pmem_asked("6GB,BIG")).claim
    assert held(pmem_stage, both.consumer) == {SMALL: ("ns0",), BIG: ("ns2",)}
    other = tracker.claim(pmem_asked("6gb")).claim
    assert held(pmem_stage, other.consumer) == {SMALL: ("ns1",)}
    for labels in ("6GB", "BIG", "NONE"):
        with pytest.raises(DoesNotFit, match="CUSTOM_PMEM_NAMESPACE_"):
            tracker.claim(pmem_asked(labels))
    tracker.release(both.consumer)
    assert held(pmem_stage, tracker.claim(pmem_asked("6GB")).claim.consumer) == {SMALL: ("ns0",)}


def test_a_namespace_that_a_guest_uses_unclaimed_is_given_to_no_other(pmem_stage: Stage) -> None:
    pmem_stage.driver.xml = (domain(1, devices=NVDIMM.format("/dev/dax0.0")),)
    pmem_stage.show()
    claim = pmem_stage.world.tracker.claim(pmem_asked("6GB")).claim
    assert held(pmem_stage, claim.consumer) == {SMALL: ("ns1",)}
    with pytest.raises(DoesNotFit, match=SMALL):
        pmem_stage.world.tracker.claim(pmem_asked("6GB"))
    pmem_stage.adopt(A, {HOST: {"VCPU": 1, "MEMORY_MB": 256, SMALL: 1}})
    assert held(pmem_stage, A) == {SMALL: ("ns0",)}


def test_the_namespaces_stay_when_the_cells_are_reported_and_back(pmem_stage: Stage) -> None:
    claim = pmem_stage.world.tracker.claim(pmem_asked("6GB,6GB")).claim
    before = held(pmem_stage, claim.consumer)
    for report_numa in (True, False):
        pmem_stage.show(report_numa=report_numa)
        assert pmem_stage.units(claim.consumer)[HOST] == before == {SMALL: ("ns0", "ns1")}
        assert pmem_stage.world.totals()[HOST][SMALL] == 2


def test_a_namespace_that_vanishes_is_not_given_and_not_taken_away(pmem_stage: Stage) -> None:
    claim = pmem_stage.world.tracker.claim(pmem_asked("6GB")).claim
    pmem_stage.driver.host = replace(pmem_stage.driver.host, pmem=FOUND[1:])
    pmem_stage.show()
    assert held(pmem_stage, claim.consumer) == {SMALL: ("ns0",)}
    assert held(pmem_stage, pmem_stage.world.tracker.claim(pmem_asked("6GB")).claim.consumer) == {
        SMALL: ("ns1",)
    }
    with pytest.raises(DoesNotFit, match=SMALL):
        pmem_stage.world.tracker.claim(pmem_asked("6GB"))


def test_a_resize_gets_other_namespaces_and_a_revert_the_former(pmem_stage: Stage) -> None:
    tracker, consumer, migration = pmem_stage.world.tracker, str(uuid4()), str(uuid4())
    tracker.claim(pmem_asked("6GB", consumer))
    tracker.begin_move(pmem_asked("6GB,BIG", consumer), MoveKind.RESIZE, migration)
    assert held(pmem_stage, consumer) == {SMALL: ("ns1",), BIG: ("ns2",)}
    with pytest.raises(DoesNotFit):
        tracker.claim(pmem_asked("6GB"))
    tracker.revert_move(migration)
    assert held(pmem_stage, consumer) == {SMALL: ("ns0",)}
    assert held(pmem_stage, tracker.claim(pmem_asked("BIG")).claim.consumer) == {BIG: ("ns2",)}


@pytest.fixture
def recorded_stage(any_placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, any_placement) as world:
        yield Stage(world)


def test_each_guests_mediated_device_is_its_own_over_a_reboot(recorded_stage: Stage) -> None:
    """Scenario 97: made again with its uuid on its parent as soon as that is there; else it is named."""
    recorded_stage.driver.xml = (domain(1, devices=hostdev(ON_M60)), domain(2, devices=hostdev(ON_A100)))
    recorded_stage.driver.boot = "the first"
    recorded_stage.show()
    claims = [recorded_stage.adopt(who, {card: {"VGPU": 1}}) for who, card in ((A, M60), (B, A100))]

    def to_make() -> dict[str, str]:
        assert recorded_stage.driver.memory is not None
        missing, facts = recorded_stage.driver.memory.missing, recorded_stage.driver.memory.devices
        return {
            each.record.unit: each.parent for each in lost_mdevs(missing, facts, recorded_stage.driver.boot)
        }

    recorded_stage.driver.boot = "the second"
    recorded_stage.show(facts=FACTS["boot"])
    assert to_make() == {ON_M60: "pci_0000_42_00_0"}
    assert [recorded_stage.claim(who) for who in (A, B)] == claims
    assert recorded_stage.world.totals()[A100] == {"VGPU": 1}, "what is in use, no more"
    facts = FACTS["boot"]
    rest = tuple(card for card in facts.cards if card.device.address != "0000:84:00.0")
    recorded_stage.show(facts=replace(facts, cards=rest))
    assert to_make() == {ON_M60: "pci_0000_42_00_0"}
    (problem,) = (said for said in recorded_stage.world.again().problems if A100 in said)
    assert B in problem, "a card that did not come back, and whose device was on it"
    assert recorded_stage.world.placed(B) == {A100: {"VGPU": 1}}
    recorded_stage.show(facts=FACTS["vfs"])
    assert to_make() == {ON_M60: "pci_0000_42_00_0", ON_A100: "pci_0000_84_00_1"}
    recorded_stage.show(facts=FACTS["domains"])
    assert to_make() == {}
    assert [recorded_stage.claim(who) for who in (A, B)] == claims


def test_a_card_gives_as_many_as_it_may_and_none_in_use_vanishes(recorded_stage: Stage) -> None:
    """Scenario 100: a largest number of instances caps exactly, raised or lowered while they are in use."""
    tracker = recorded_stage.world.tracker

    def capped(most: int) -> int:
        spec = MdevSpec("nvidia-11", frozenset({"0000:42:00.0"}), "VGPU", most)
        recorded_stage.show(facts=FACTS["vfs"], devices=devices(spec))
        return recorded_stage.world.totals()[M60]["VGPU"]

    assert capped(2) == 2
    taken = [tracker.claim(request(str(uuid4()), VGPU=1)).claim for _ in range(2)]
    with pytest.raises(DoesNotFit):
        tracker.claim(request(str(uuid4()), VGPU=1))
    assert capped(3) == 3
    taken.append(tracker.claim(request(str(uuid4()), VGPU=1)).claim)
    for most, told in ((1, "3 VGPU are in use of 1"), (0, "still hold some of it")):
        capped(most)
        assert any(told in each for each in recorded_stage.world.again().problems)
        with pytest.raises(DoesNotFit):
            tracker.claim(request(str(uuid4()), VGPU=1))
        assert [tracker.claim_of(each.consumer) for each in taken] == taken
        assert all(recorded_stage.world.placed(each.consumer) == {M60: {"VGPU": 1}} for each in taken)


def test_functions_of_one_card_that_contradict_each_other_change_nothing(recorded_stage: Stage) -> None:
    """Scenario 104: the host is not described so, the addresses are told, and what is claimed stays."""
    recorded_stage.show(devices=devices())
    held = recorded_stage.world.tracker.claim(request(VCPU=1, SRIOV_NET_VF=1)).claim
    before = recorded_stage.world.everything()
    one = '{"address": "0000:41:10.2", "traits": "gold"}'
    specs = parse_device_specs((one, '{"vendor_id": "8086", "product_id": "10ca"}'))
    recorded_stage.driver.settings = replace(recorded_stage.driver.settings, devices=DeviceSettings(specs))
    recorded_stage.world.reconciler.replace_driver(recorded_stage.driver)
    report = recorded_stage.world.again()
    assert isinstance(report.error, DriverDataError)
    assert "0000:41:10.0 and 0000:41:10.2, virtual functions of one" in report.error.message
    assert recorded_stage.world.everything() == before
    assert recorded_stage.world.tracker.claim_of(held.consumer) == held


# Memory of cells without CPUs: never MEMORY_MB, through claims, an upgrade, and a cell that is plugged in


CPULESS = "CUSTOM_CPULESS_MEMORY_MB"
CXL = f"{HOST}_numa2_memory"
CELL = Cell(2, frozenset(), 2048, pages={4: 2048 * 256 - 512 * 256, 2048: 256})
TOLD = {2: MemoryCell("cxl", 1, 24)}
ON_CXL = "<numatune><memory mode='strict' nodeset='2'/></numatune>"


def plug(stage: Stage, *cells: Cell) -> None:
    stage.driver.host = stage.driver.host.with_cells((*FLAT_HOST.capabilities.cells, *cells))
    stage.driver.facts = replace(stage.driver.facts, memory_cells=TOLD)


@pytest.mark.parametrize("numa", [False, True])
def test_memory_without_cpus_is_offered_by_kind_and_is_no_memory_of_the_host(
    stage: Stage, numa: bool
) -> None:
    stage.show(report_numa=numa)
    before = {name: amounts.get("MEMORY_MB") for name, amounts in stage.world.totals().items()}
    plug(stage, CELL)
    stage.show(cpuless=("hbm", "pmem"))
    provider = stage.world.tree().by_name(CXL)
    assert provider is not None
    assert provider.traits == {"CUSTOM_MEMORY_CXL", "CUSTOM_MEMORY_DISTANCE_24"}
    assert stage.world.tree()[provider.parent or ""].name == (f"{HOST}_numa1" if numa else HOST)
    after = {name: amounts.get("MEMORY_MB") for name, amounts in stage.world.totals().items()}
    assert after == {**before, CXL: None}, "also none of its large pages are a provider's"
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))
    stage.show(cpuless=("cxl",))
    claim = stage.world.tracker.claim(request(VCPU=1, MEMORY_MB=64, **{CPULESS: 1500})).claim
    assert stage.world.placed(claim.consumer)[CXL] == {CPULESS: 1500}
    with pytest.raises(DoesNotFit, match="37 CUSTOM_CPULESS_MEMORY_MB asked, 36 free"):
        stage.world.tracker.claim(request(**{CPULESS: 37}))  # the 512 MiB in large pages are kept
    stage.show(cpuless=())
    assert stage.world.placed(claim.consumer)[CXL] == {CPULESS: 1500}, "what is claimed stays"


@pytest.mark.parametrize("state", [GuestState.RUNNING, GuestState.SHUTOFF])
@pytest.mark.parametrize("numa", [False, True])
def test_guests_on_a_cell_without_cpus_go_from_memory_mb_to_its_class(
    stage: Stage, numa: bool, state: GuestState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this agent's former version claimed; the cell is one of the kinds that are not offered."""
    plug(stage, CELL)
    stage.driver.xml = (domain(1, memory_mb=512, inside=ON_CXL), domain(2, memory_mb=512))
    stage.driver.states = {domain_uuid(1): state}
    with monkeypatch.context() as former:
        former.setattr("drivers.libvirt.describe.host.HostFacts.cells_without_cpus", ())
        stage.show(report_numa=numa)
        assert CXL not in stage.world.totals()
        groups = (RequestGroup("", {"VCPU": 1}), RequestGroup("_1", {"MEMORY_MB": 512}))
        bound = {"_1": frozenset({stage.world.uuid(f"{HOST}_numa2" if numa else HOST)})}
        for number, restriction in ((1, Restriction(bound=bound)), (2, UNRESTRICTED)):
            stage.world.tracker.claim(ClaimRequest(domain_uuid(number), groups), restriction)
        total = sum(amounts.get("MEMORY_MB", 0) for amounts in stage.world.totals().values())
    assert stage.driver.memory is not None
    history = {name: was for name, was in stage.driver.memory.history.items() if name != FIRST_CPULESS}
    stage.driver.memory = replace(stage.driver.memory, history=history)
    stage.show()
    placed = stage.world.placed(domain_uuid(1))
    assert placed.pop(CXL) == {CPULESS: 512}
    assert "MEMORY_MB" not in {name for amounts in placed.values() for name in amounts}
    totals = stage.world.totals()
    assert totals[CXL] == {CPULESS: 2048}
    assert sum(amounts.get("MEMORY_MB", 0) for amounts in totals.values()) == total - 2048
    other = stage.world.placed(domain_uuid(2))
    assert sum(amounts.get("MEMORY_MB", 0) for amounts in other.values()) == 512
    assert CXL not in other
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))


def test_a_kind_that_is_not_offered_stays_with_those_who_have_some_of_it(stage: Stage) -> None:
    """Claims, their guests defined or not, and guests that run; not the part of one that is only defined."""

    def offered() -> int:
        (problems, provider) = (stage.world.again().problems, stage.world.tree().by_name(CXL))
        assert provider is not None
        assert not [each for each in problems if "over capacity" in each or "No claim" in each]
        return provider.inventories[CPULESS].capacity

    plug(stage, CELL)
    stage.show(cpuless=())
    stage.driver.xml = (domain(1, memory_mb=256, inside=ON_CXL),)
    stage.driver.states = {domain_uuid(1): GuestState.SHUTOFF}
    assert offered() == 0
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))
    stage.show(cpuless=("cxl",))
    claims = [stage.world.tracker.claim(request(**{CPULESS: amount})).claim for amount in (700, 50)]
    stage.show(cpuless=())
    assert offered() == 750
    stage.driver.states = {}
    stage.show()
    assert offered() == 750, "what the guest uses is reserved for it"
    stage.world.tracker.claim(replace(request(**{CPULESS: 256}), consumer=domain_uuid(1)))
    assert offered() == 1006
    stage.world.tracker.release(claims[0].consumer)
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))  # also before the next pass
    moved = stage.world.tracker.claim(replace(request(**{CPULESS: 50}), consumer=claims[1].consumer)).claim
    assert moved.allocations == claims[1].allocations, "what a consumer has stays its own"
    assert offered() == 306
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))


def test_a_cell_whose_kind_the_kernel_does_not_tell_is_not_offered(stage: Stage) -> None:
    """What is claimed of it stays, and it is offered again when the kernel tells."""
    plug(stage, CELL)
    stage.show(cpuless=MEMORY_KINDS)
    claim = stage.world.tracker.claim(request(**{CPULESS: 700})).claim
    stage.driver.facts = replace(stage.driver.facts, memory_cells={2: MemoryCell("unknown", 1, 24)})
    stage.show()
    provider = stage.world.tree().by_name(CXL)
    assert provider is not None and "CUSTOM_MEMORY_UNKNOWN" in provider.traits
    assert ["NUMA cell 2 has is not known" in each for each in stage.world.again().problems] == [True]
    assert stage.world.placed(claim.consumer)[CXL] == {CPULESS: 700}
    with pytest.raises(DoesNotFit, match="1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))
    plug(stage, CELL)
    stage.show()
    stage.world.tracker.claim(request(**{CPULESS: 1}))


def test_a_cell_that_is_plugged_in_is_no_reshape(stage: Stage) -> None:
    """Also where a guest was to have memory there, and has a claim of MEMORY_MB; a cell may go again."""
    stage.driver.xml = (domain(1, memory_mb=512, inside=ON_CXL),)
    stage.show(cpuless=("cxl",))
    stage.world.tracker.claim(replace(request(VCPU=1, MEMORY_MB=512), consumer=domain_uuid(1)))
    for cells in ((CELL,), (), (replace(CELL, memory_mb=0),), (CELL,)):
        plug(stage, *cells)
        stage.show()
        assert not stage.world.journal.reshapes(done=True)
        assert (CXL in stage.world.totals()) == (cells == (CELL,))
    assert stage.world.placed(domain_uuid(1))[HOST]["MEMORY_MB"] == 512
    with pytest.raises(DoesNotFit, match=r"asked, 1024 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1025}))  # the guest's part is no other guest's
    claim = stage.world.tracker.claim(request(**{CPULESS: 1024})).claim
    plug(stage)
    stage.world.reconciler.replace_driver(stage.driver)
    unlisted, problem = stage.world.again().problems
    assert "libvirt does not list the memory of NUMA cell 2" in unlisted
    assert f"on provider {CXL} any more, but {claim.consumer} still holds some of it" in problem
    assert "Bring it back, or release" in problem
    with pytest.raises(DoesNotFit, match=r"1 CUSTOM_CPULESS_MEMORY_MB asked, 0 free"):
        stage.world.tracker.claim(request(**{CPULESS: 1}))


# Cards below their PCIe switches: peers in a claim, and turning it on and off under claims


SWITCHES = {"41": "40", "42": "40", "81": "80", "82": "80", "84": "80"}
BRIDGES = {
    f"0000:{bus}:00.0": (f"pci0000:{port}", f"0000:{port}:01.0", f"0000:{port}:02.0", f"0000:{port}:03.0")
    for bus, port in SWITCHES.items()
} | {f"0000:{bus}:00.0": (f"pci0000:{bus[0]}0", f"0000:{bus[0]}0:04.0") for bus in ("43", "83")}
SWITCH = [f"{HOST}_pcie_0000:{port}:01.0" for port in ("40", "80")]


def peers(trait: str = "CUSTOM_PCIE_SWITCH") -> ClaimRequest:
    """A vGPU of an M60 and a virtual function behind one switch, by an extra spec."""
    specs = {
        "resources_GPU:VGPU": "1",
        "trait_GPU:CUSTOM_MDEV_TYPE_NVIDIA_11": "required",
        "resources_NIC:SRIOV_NET_VF": "1",
        f"trait_TOP:{trait}": "required",
        "same_subtree": "_TOP,_GPU,_NIC",
        "group_policy": "none",
    }
    flavor = {"vcpus": 1, "memory_mb": 64, "extra_specs": specs}
    return parse_claim({"consumer": str(uuid4()), "flavor": flavor})


def fits(stage: Stage, asked: ClaimRequest) -> bool:
    """Whether Placement's candidates have a place for it."""
    return where(stage.world.client, [AskedRequest(asked, {})]).verdict is Verdict.FITS


@pytest.mark.parametrize("numa", [False, True])
def test_claims_get_devices_behind_one_switch(stage: Stage, numa: bool) -> None:
    settings = replace(stage.driver.settings.devices, peers="switch")
    stage.show(facts=replace(FACTS["vfs"], bridges=BRIDGES), devices=settings, report_numa=numa)
    tracker, got = stage.world.tracker, []
    while fits(stage, asked := peers()):
        got.append(set(tracker.claim(asked).claim.allocations))
    names = {provider.uuid: provider.name for provider in stage.world.tree()}
    of_devices = [{names[uuid] for uuid in uuids} - {HOST, CELL0, CELL1} for uuids in got]
    behind = [{f"{HOST}_pci_0000:{gpu}:00.0", nic} for gpu, nic in (("42", NIC0), ("82", NIC1))]
    vfs = [len(card.vfs) for card in FACTS["vfs"].cards if card.device.address in (ADDRESS, "0000:81:00.0")]
    assert [of_devices.count(pair) for pair in behind] == vfs
    assert len(of_devices) == sum(vfs)
    with pytest.raises(DoesNotFit, match="SRIOV_NET_VF"):
        tracker.claim(asked)


def test_the_gpu_and_the_function_that_are_left_are_no_peers(stage: Stage) -> None:
    settings = replace(stage.driver.settings.devices, peers="switch")
    stage.show(facts=replace(FACTS["vfs"], bridges=BRIDGES), devices=settings)
    nic = stage.world.tree().by_name(NIC0)
    gpu = stage.world.tree().by_name(f"{HOST}_pci_0000:82:00.0")
    assert nic is not None and gpu is not None
    for provider, name in ((nic, "SRIOV_NET_VF"), (gpu, "VGPU")):
        amount = provider.inventories[name].total
        bound = Restriction(bound={"_1": frozenset({provider.uuid})})
        stage.world.tracker.claim(ClaimRequest(str(uuid4()), (RequestGroup("_1", {name: amount}),)), bound)
    assert not fits(stage, peers())
    with pytest.raises(
        DoesNotFit, match=f"below {SWITCH[0]}, which has trait CUSTOM_PCIE_SWITCH, .* free: .* has"
    ):
        stage.world.tracker.claim(peers())
    apart = peers()
    alone = tuple(group for group in apart.groups if group.resources)
    stage.world.tracker.claim(replace(apart, groups=alone, same_subtree=()))


@pytest.mark.parametrize("numa", [False, True])
def test_cards_go_below_switches_and_back_with_their_claims(stage: Stage, numa: bool) -> None:
    """No allocation moves; a card whose bridges are not known any more is where it was before."""
    second = dict.fromkeys(("0000:81:00.0", "0000:82:00.0", "0000:84:00.0"), "0000:81:00.0")
    first = dict.fromkeys((ADDRESS, "0000:42:00.0"), ADDRESS)
    facts = replace(FACTS["vfs"], bridges=BRIDGES, groups={**first, **second})
    stage.show(facts=facts, report_numa=numa)
    parts = (CELL0, CELL1) if numa else (HOST, HOST)
    asked = replace(peers(), same_subtree=(), groups=tuple(each for each in peers().groups if each.resources))
    claim = stage.world.tracker.claim(asked).claim
    placed, before = stage.world.placed(claim.consumer), stage.world.everything()
    plain = stage.driver.settings.devices
    for kind, above in (
        ("switch", SWITCH),
        ("root_complex", [f"{HOST}_pcie_pci0000:{bus}" for bus in (40, 80)]),
        ("gpu_link", [f"{parts[0]}_link_{ADDRESS}", f"{parts[1]}_link_0000:81:00.0"]),
    ):
        stage.show(devices=replace(plain, peers=kind), facts=facts)
        tree = stage.world.tree()
        parents = {each.name: tree[each.parent].name for each in tree if each.parent}
        assert [parents[NIC0], parents[NIC1]] == above and fits(stage, peers(PEERS[kind]))
        assert [parents[name] for name in above] == [*parts]
        assert [tree[each.parent or ""].name for each in tree if "84:00.0" in each.name] == above[1:]
        assert stage.world.placed(claim.consumer) == placed
        assert stage.claim(claim.consumer).units == claim.units
        assert not any(tree.by_name(name).inventories for name in above)
        stage.show(facts=replace(facts, bridges={**BRIDGES, ADDRESS: ()}, groups=second))
        assert stage.world.tree()[stage.world.tree().by_name(NIC0).parent].name == (CELL0 if numa else HOST)
    stage.show(devices=plain, facts=facts)
    assert stage.world.everything() == before
    assert not stage.world.journal.reshapes(done=True)
