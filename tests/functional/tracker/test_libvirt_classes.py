"""Resource classes of the libvirt driver through claims, guests, moves and reshapes, on a whole host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.libvirt_node import domain
from kits.placements import Placement
from kits.recorded import Stage
from kits.reshape import HOST, World
from kits.tracker import request

from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest
from agent.errors import DoesNotFit
from agent.moves.states import MoveKind
from drivers.libvirt.describe.bandwidth import parse_ovs
from drivers.libvirt.xml import DomainCapabilities

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


def where(stage: Stage, consumer: str) -> str:
    (name,) = (name for name, amounts in stage.world.placed(consumer).items() if CONTEXT in amounts)
    return name


def test_each_model_is_served_by_its_own_contexts_and_no_others(stage: Stage) -> None:
    show(stage, sev=2, sev_es=1, tdx=1)
    tracker = stage.world.tracker
    for model, name in (("amd-sev", SEV), ("amd-sev-es", ES), ("intel-tdx", TDX)):
        assert where(stage, tracker.claim(asked(model)).claim.consumer) == name
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
    assert where(stage, first.consumer) == where(stage, second.consumer) == SNP
    for model in ("amd-sev-snp", "amd-sev-es"):
        with pytest.raises(DoesNotFit):
            tracker.claim(asked(model))
    assert where(stage, tracker.claim(asked("amd-sev")).claim.consumer) == SEV
    tracker.release(first.consumer)
    assert where(stage, tracker.claim(asked("amd-sev-snp")).claim.consumer) == SNP


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
        assert where(stage, migration) == where(stage, consumer) == name
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
        assert where(stage, migration) == where(stage, consumer) == name
    tracker.revert_move(migration)
    assert where(stage, consumer) == name
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
    assert where(stage, claim.consumer) == ES
    with pytest.raises(DoesNotFit):
        tracker.claim(asked("amd-sev-es"))


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
