"""Contexts for encrypted memory, SEV to TDX, by flavor: through claims, moves and reshapes."""

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
from drivers.libvirt.xml import DomainCapabilities

CONTEXT = "MEM_ENCRYPTION_CONTEXT"
SEV, ES, SNP, TDX = (f"{HOST}_{end}" for end in ("amd_sev", "amd_sev_es", "amd_sev_snp", "intel_tdx"))
SNP_OF_2 = {"sev_es": 2, "sev_snp": 0}
"""As libvirt reports a processor with SEV-SNP and two keys: the number is that of SEV-ES."""
EPC = "CUSTOM_SGX_EPC_MB"


@pytest.fixture
def stage(placement: Placement, tmp_path: Path) -> Iterator[Stage]:
    with World(tmp_path, placement) as world:
        yield Stage(world)


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
