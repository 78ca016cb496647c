"""Provider config files in the pass: applied once, followed by a reload, taken back with the file."""

from __future__ import annotations

import pytest
from kits.reshape import HOST, ROOT, World, host, provider, uuid_of
from kits.tracker import request

from agent.driver import DescribedInventory, MoveInstruction
from agent.errors import SettingsError
from agent.providers.provider_config import COMPUTE_NODE, ProviderConfig, ProviderEntry
from agent.tree import MAX_UNIT, Inventory

LICENSES = {"CUSTOM_LICENSE": DescribedInventory(4, reserved=1, max_unit=MAX_UNIT, allocation_ratio=1.0)}
GPU = {"CUSTOM_GPU_LICENSE": DescribedInventory(2, allocation_ratio=1.0)}
GENERAL = ProviderEntry("a.yaml", "providers[0]", None, COMPUTE_NODE, LICENSES, frozenset({"CUSTOM_RACK_7"}))
CARD = ProviderEntry("a.yaml", "providers[1]", "gpu0", None, GPU, frozenset({"CUSTOM_FAST"}))
CONFIG = ProviderConfig((GENERAL, CARD))
SEEN = (host(), provider("gpu0", VGPU=4))


def test_what_is_configured_is_applied_once_and_can_be_claimed(world: World) -> None:
    """Scenario 23: by name and $COMPUTE_NODE; a second pass does nothing, and asks nothing."""
    world.see(*SEEN)
    world.reconciler.replace_provider_config(CONFIG)
    report = world.reconciler.reconcile("the reload")
    assert (report.error, report.problems) == (None, ())
    root = world.tree()[ROOT]
    assert root.inventories["CUSTOM_LICENSE"] == Inventory(4, 1, 1, MAX_UNIT, 1, 1.0)
    assert root.inventories.keys() == {"VCPU", "CUSTOM_LICENSE"} and "CUSTOM_RACK_7" in root.traits
    gpu = world.tree()[world.uuid("gpu0")]
    assert gpu.inventories.keys() == {"VGPU", "CUSTOM_GPU_LICENSE"} and gpu.traits == {"CUSTOM_FAST"}
    world.tap.calls.clear()
    world.reconciler.replace_provider_config(CONFIG)
    assert world.reconciler.reconcile("its interval").operations == 0
    assert world.tap.calls == []
    claim = world.tracker.claim(request(CUSTOM_LICENSE=1, VGPU=1, CUSTOM_GPU_LICENSE=1)).claim
    assert claim.allocations[world.uuid("gpu0")] == {"VGPU": 1, "CUSTOM_GPU_LICENSE": 1}


def test_an_explicit_entry_beats_the_general_one_and_a_uuid_means_the_same(world: World) -> None:
    """Scenario 23: explicit entry beats $COMPUTE_NODE."""
    world.see(*SEEN)
    own = ProviderEntry("b.yaml", "providers[0]", None, ROOT, GPU)
    world.reconciler.replace_provider_config(ProviderConfig((GENERAL, own)))
    assert world.again().error is None
    root = world.tree()[ROOT]
    assert root.inventories.keys() == {"VCPU", "CUSTOM_GPU_LICENSE"} and "CUSTOM_RACK_7" not in root.traits
    uuid = world.uuid("gpu0")
    world.reconciler.replace_provider_config(
        ProviderConfig((ProviderEntry("b.yaml", "providers[0]", None, uuid, LICENSES),))
    )
    world.again()
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4, "CUSTOM_LICENSE": 4}}


def test_what_is_taken_out_of_the_file_goes_and_what_is_held_of_it_stays(world: World) -> None:
    world.see(*SEEN)
    world.reconciler.replace_provider_config(CONFIG)
    world.again()
    world.hold("a", node1={"CUSTOM_LICENSE": 1})
    world.restart()
    report = world.again()
    assert report.error is None
    assert any("CUSTOM_LICENSE" in each and uuid_of("a") in each for each in report.problems)
    assert world.totals() == {HOST: {"VCPU": 64, "CUSTOM_LICENSE": 4}, "gpu0": {"VGPU": 4}}
    assert world.tree()[ROOT].traits == frozenset()
    world.raw.delete_allocations(uuid_of("a"))
    assert world.again().problems == ()
    assert world.totals() == {HOST: {"VCPU": 64}, "gpu0": {"VGPU": 4}}


def test_a_conflict_with_the_driver_is_refused_and_the_old_stays(world: World) -> None:
    world.see(*SEEN)
    world.reconciler.replace_provider_config(ProviderConfig((GENERAL,)))
    world.again()
    wrong = ProviderEntry("b.yaml", "providers[2]", "gpu0", None, {"VGPU": DescribedInventory(9)})
    with pytest.raises(
        SettingsError, match=r"^b.yaml: providers\[2\]\.inventories\.additional: .*VGPU on gpu0"
    ):
        world.reconciler.replace_provider_config(ProviderConfig((wrong,)))
    assert world.again().operations == 0
    assert world.totals() == {HOST: {"VCPU": 64, "CUSTOM_LICENSE": 4}, "gpu0": {"VGPU": 4}}


def test_a_conflict_that_comes_with_the_hardware_is_told_and_the_rest_is_reported(world: World) -> None:
    world.see(*SEEN)
    world.reconciler.replace_provider_config(CONFIG)
    world.again()
    report = world.see(host(CUSTOM_LICENSE=32), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
    (problem,) = report.problems
    assert report.error is None and "a.yaml: providers[0]" in problem and "CUSTOM_LICENSE" in problem
    assert world.totals()[HOST] == {"VCPU": 64, "CUSTOM_LICENSE": 32}
    assert world.totals()["gpu1"] == {"VGPU": 4}
    assert "CUSTOM_RACK_7" in world.tree()[ROOT].traits


def test_providers_of_others_are_theirs_whatever_a_file_says(world: World) -> None:
    """Scenario 25: a network agent's provider under our root."""
    world.see(*SEEN)
    theirs = uuid_of("their provider")
    bandwidth = {"NET_BW_EGR_KILOBIT_PER_SEC": Inventory(1000)}
    world.raw.create_provider(world.tree()[ROOT].__class__(theirs, "their provider", ROOT))
    world.raw.put_inventories(theirs, 0, bandwidth)
    before = world.tree()[theirs]
    for told in ({"name": "their provider"}, {"uuid": theirs}):
        world.reconciler.replace_provider_config(
            ProviderConfig((ProviderEntry("a.yaml", "providers[0]", inventories=LICENSES, **told),))
        )
        assert world.again().error is None
        assert world.tree()[theirs] == before


def test_a_reshape_leaves_what_is_configured_where_it_is(world: World) -> None:
    world.see(host(VGPU=4))
    world.reconciler.replace_provider_config(ProviderConfig((GENERAL,)))
    world.again()
    world.hold("a", node1={"VGPU": 1, "CUSTOM_LICENSE": 2})
    report = world.see(
        *SEEN, moves=(MoveInstruction(HOST, {"VGPU": 4}, "gpu0", {uuid_of("a"): {"VGPU": 1}}),)
    )
    assert (report.error, report.pending) == (None, None)
    assert world.placed("a") == {HOST: {"CUSTOM_LICENSE": 2}, "gpu0": {"VGPU": 1}}
    assert world.totals() == {HOST: {"VCPU": 64, "CUSTOM_LICENSE": 4}, "gpu0": {"VGPU": 4}}


def test_an_entry_for_a_provider_that_this_host_does_not_have_is_told_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """And again once it was there in between: operators share one file among many hosts."""
    caplog.set_level("INFO", "agent.reconcile")
    world.reconciler.replace_provider_config(CONFIG)
    told = []
    for providers in ((host(),), (host(),), SEEN, (host(),)):
        caplog.clear()
        assert world.see(*providers).problems == ()
        told.append(sum("describes no provider" in each.getMessage() for each in caplog.records))
    assert told == [1, 0, 0, 1]
