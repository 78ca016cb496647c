"""From names to uuids, and what belongs to others."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import UUID, uuid5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.examples import examples

from agent.codec import decode, encode
from agent.driver import DescribedInventory, DescribedProvider, Description
from agent.errors import DriverDataError, UsageError
from agent.providers.plan import plan
from agent.providers.resolve import OwnedProvider, OwnedProviders, ResolvedDescription, resolve
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "c0ffee00-0000-4000-8000-000000000001"
FOREIGN = "c0ffee00-0000-4000-8000-000000000002"
AGGREGATE = "c0ffee00-0000-4000-8000-00000000000a"
NOBODY = OwnedProviders()
NOTHING = ProviderTree()


def host(**changes: Any) -> DescribedProvider:
    return replace(DescribedProvider("host", inventories={"VCPU": DescribedInventory(16)}), **changes)


def gpu(name: str = "host_gpu", **changes: Any) -> DescribedProvider:
    return replace(
        DescribedProvider(
            name, "host", {"VGPU": DescribedInventory(8)}, frozenset({"CUSTOM_T4"}), device="pci:0000:84:00.0"
        ),
        **changes,
    )


def described(*providers: DescribedProvider) -> Description:
    return Description(providers)


def first(*providers: DescribedProvider) -> ResolvedDescription:
    return resolve(described(*providers), NOTHING, NOBODY, ROOT)


def uuid_of(name: str) -> str:
    return str(uuid5(UUID(ROOT), name))


def test_a_first_description_becomes_a_tree_with_uuids_of_its_own() -> None:
    ways = (frozenset({"VGPU"}), frozenset({"PGPU"}))
    to_make = {"VGPU": {"a": {"parent": "0000:84:00.0", "type": "nvidia-222"}}}
    resolved = first(host(), gpu(units={"VGPU": ("a", "b")}, cell=0, ways=ways, to_make=to_make))
    assert resolved.tree == ProviderTree(
        [
            Provider(ROOT, "host", None, {"VCPU": Inventory(16, max_unit=16)}),
            Provider(
                uuid_of("host_gpu"),
                "host_gpu",
                ROOT,
                {"VGPU": Inventory(8, max_unit=8)},
                frozenset({"CUSTOM_T4"}),
            ),
        ]
    )
    assert resolved.devices == {ROOT: "host", uuid_of("host_gpu"): "pci:0000:84:00.0"}
    assert resolved.units == {uuid_of("host_gpu"): {"VGPU": ("a", "b")}}
    assert (resolved.cells, resolved.ways) == ({uuid_of("host_gpu"): 0}, {uuid_of("host_gpu"): ways})
    assert resolved.to_make == {uuid_of("host_gpu"): to_make}
    assert resolved.owned == OwnedProviders(
        {
            ROOT: OwnedProvider(frozenset({"VCPU"})),
            uuid_of("host_gpu"): OwnedProvider(frozenset({"VGPU"}), frozenset({"CUSTOM_T4"})),
        }
    )
    assert resolved.problems == ()


def test_the_same_description_again_changes_nothing() -> None:
    once = first(host(), gpu())
    again = resolve(described(host(), gpu()), once.tree, once.owned, ROOT)
    assert plan(once.tree, again.tree).empty
    assert again.owned == once.owned


def test_a_provider_that_stands_under_our_root_keeps_its_uuid() -> None:
    current = ProviderTree([Provider(ROOT, "host"), Provider(FOREIGN, "host_gpu", ROOT, generation=7)])
    resolved = resolve(described(host(), gpu()), current, NOBODY, ROOT)
    assert resolved.tree.by_name("host_gpu") == resolved.tree[FOREIGN]
    assert resolved.tree[FOREIGN].generation == 7
    assert resolved.tree[FOREIGN].inventories == {"VGPU": Inventory(8, max_unit=8)}


def test_a_renamed_provider_does_not_lend_its_uuid_twice() -> None:
    current = ProviderTree([Provider(ROOT, "host"), Provider(uuid_of("b"), "a", ROOT)])
    resolved = resolve(described(host(), gpu("a"), gpu("b")), current, NOBODY, ROOT)
    assert resolved.tree[uuid_of("b")].name == "a"
    assert resolved.tree.by_name("b") is not None


def test_a_renamed_host_keeps_its_uuid() -> None:
    current = ProviderTree([Provider(ROOT, "old-name", generation=3)])
    assert resolve(described(host()), current, NOBODY, ROOT).tree[ROOT].name == "host"


def test_a_foreign_provider_is_kept_as_it_is() -> None:
    theirs = Provider(
        FOREIGN,
        "host:NIC",
        ROOT,
        {"NET_BW_EGR_KILOBIT_PER_SEC": Inventory(1000)},
        frozenset({"CUSTOM_PHYSNET"}),
    )
    current = ProviderTree([Provider(ROOT, "host"), theirs])
    resolved = resolve(described(host()), current, NOBODY, ROOT)
    assert resolved.tree[FOREIGN] is theirs
    assert FOREIGN not in resolved.owned


def test_what_others_put_on_our_provider_stays_and_what_we_put_goes() -> None:
    once = first(
        host(
            inventories={"VCPU": DescribedInventory(16), "CUSTOM_OURS": DescribedInventory(1)},
            traits=frozenset({"CUSTOM_OURS"}),
        )
    )
    shown = replace(
        once.tree[ROOT],
        inventories={**once.tree[ROOT].inventories, "CUSTOM_LICENSE": Inventory(5)},
        traits=once.tree[ROOT].traits | {"CUSTOM_GOLD"},
        aggregates=frozenset({AGGREGATE}),
    )
    resolved = resolve(described(host()), ProviderTree([shown]), once.owned, ROOT)
    assert resolved.tree[ROOT].inventories == {
        "VCPU": Inventory(16, max_unit=16),
        "CUSTOM_LICENSE": Inventory(5),
    }
    assert resolved.tree[ROOT].traits == {"CUSTOM_GOLD"}
    assert resolved.tree[ROOT].aggregates == {AGGREGATE}
    assert resolved.owned.get(ROOT) == OwnedProvider(frozenset({"VCPU"}))


def test_a_trait_that_the_driver_could_report_and_does_not_goes_whoever_put_it_there() -> None:
    reportable = frozenset({"HW_CPU_X86_AVX2", "HW_CPU_X86_VMX", "COMPUTE_FIRMWARE_UEFI", "CUSTOM_GOLD"})
    theirs = {"HW_CPU_X86_AVX2", "COMPUTE_FIRMWARE_UEFI", "COMPUTE_STATUS_DISABLED", "CUSTOM_GOLD"}
    current = ProviderTree(
        [
            Provider(ROOT, "host", traits=frozenset(theirs)),
            Provider(uuid_of("host_gpu"), "host_gpu", ROOT, traits=frozenset({"HW_CPU_X86_AVX2"})),
            Provider(FOREIGN, "host:NIC", ROOT, traits=frozenset({"HW_CPU_X86_AVX2"})),
        ]
    )
    description = Description(
        (host(traits=frozenset({"HW_CPU_X86_VMX"})), gpu(traits=frozenset())), reportable=reportable
    )
    resolved = resolve(description, current, NOBODY, ROOT)
    assert resolved.tree[ROOT].traits == {"HW_CPU_X86_VMX", "COMPUTE_STATUS_DISABLED", "CUSTOM_GOLD"}
    assert resolved.tree[uuid_of("host_gpu")].traits == frozenset()
    assert resolved.tree[FOREIGN].traits == {"HW_CPU_X86_AVX2"}
    assert resolved.owned.get(ROOT).traits == {"HW_CPU_X86_VMX"}


def test_our_provider_stays_without_inventory_while_a_foreign_child_hangs_under_it() -> None:
    once = first(host(), gpu())
    child = Provider(FOREIGN, "theirs", uuid_of("host_gpu"), {"CUSTOM_X": Inventory(1)})
    resolved = resolve(described(host()), once.tree.with_provider(child), once.owned, ROOT)
    assert resolved.tree[FOREIGN] == child
    assert resolved.tree[uuid_of("host_gpu")].inventories == {}
    assert uuid_of("host_gpu") in resolved.owned
    without = ProviderTree(provider for provider in resolved.tree if provider.uuid != FOREIGN)
    later = resolve(described(host()), without, resolved.owned, ROOT)
    assert [provider.name for provider in later.tree] == ["host"]


def test_our_provider_stays_while_others_have_inventory_on_it() -> None:
    once = first(host(), gpu())
    gpu_now = once.tree[uuid_of("host_gpu")]
    shared = replace(gpu_now, inventories={**gpu_now.inventories, "CUSTOM_LICENSE": Inventory(5)})
    resolved = resolve(described(host()), once.tree.with_provider(shared), once.owned, ROOT)
    assert resolved.tree[shared.uuid].inventories == {"CUSTOM_LICENSE": Inventory(5)}


def test_an_unset_ratio_keeps_placements_and_a_set_one_wins() -> None:
    unset = host(inventories={"VCPU": DescribedInventory(16, initial_allocation_ratio=4.0)})
    once = first(unset)
    assert once.tree[ROOT].inventories["VCPU"].allocation_ratio == 4.0
    tuned = ProviderTree(
        [replace(once.tree[ROOT], inventories={"VCPU": Inventory(16, max_unit=16, allocation_ratio=9.5)})]
    )
    kept = resolve(described(unset), tuned, once.owned, ROOT)
    assert kept.tree[ROOT].inventories["VCPU"].allocation_ratio == 9.5
    fixed = host(inventories={"VCPU": DescribedInventory(16, allocation_ratio=2.0)})
    assert (
        resolve(described(fixed), tuned, once.owned, ROOT).tree[ROOT].inventories["VCPU"].allocation_ratio
        == 2.0
    )


def test_reserved_goes_back_when_it_is_no_longer_asked_for() -> None:
    once = first(host(inventories={"VCPU": DescribedInventory(16, reserved=4)}))
    again = resolve(described(host()), once.tree, once.owned, ROOT)
    assert again.tree[ROOT].inventories["VCPU"].reserved == 0


def test_more_reserved_than_there_is_offers_nothing_and_says_so() -> None:
    resolved = first(
        host(inventories={"VCPU": DescribedInventory(16, reserved=20), "PCPU": DescribedInventory(4)})
    )
    assert resolved.tree[ROOT].inventories["VCPU"].capacity == 0
    assert resolved.tree[ROOT].inventories["PCPU"].capacity == 4
    (problem,) = resolved.problems
    assert "20 of VCPU are reserved on provider 'host', which has only 16" in problem


def test_names_placement_cannot_know_are_left_out_and_named() -> None:
    resolved = first(
        host(
            inventories={"VCPU": DescribedInventory(16), "BOGUS": DescribedInventory(1)},
            traits=frozenset({"CUSTOM_lower", "HW_CPU_X86_AVX2"}),
            aggregates=frozenset({AGGREGATE, "rack-4"}),
        ),
        gpu(),
    )
    assert resolved.tree[ROOT].inventories.keys() == {"VCPU"}
    assert resolved.tree[ROOT].traits == {"HW_CPU_X86_AVX2"}
    assert resolved.tree[ROOT].aggregates == {AGGREGATE}
    assert resolved.owned.get(ROOT).classes == {"VCPU"}
    assert resolved.tree.by_name("host_gpu") is not None
    assert len(resolved.problems) == 3
    for word in ("'BOGUS'", "'CUSTOM_lower'", "'rack-4'"):
        assert any(word in problem and "'host'" in problem for problem in resolved.problems)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        (Description(()), "begin with the host"),
        (described(gpu()), "begin with the host"),
        (described(host(), gpu(), gpu()), "describes provider 'host_gpu' twice"),
        (described(host(), gpu(parent="numa0")), "under 'numa0', which does not come before it"),
        (described(host(), gpu(parent=None)), "under None"),
        (described(host(), gpu("x" * 201)), "a name of 201 characters"),
        (described(host(inventories={"VCPU": DescribedInventory(-1)})), "VCPU on 'host'"),
        (described(host(inventories={"VCPU": DescribedInventory(2**31)})), "total 2147483648"),
        (described(host(inventories={"VCPU": DescribedInventory(0, reserved=-1)})), "reserved -1"),
        (described(host(inventories={"VCPU": DescribedInventory(8, allocation_ratio=-1.0)})), "ratio -1.0"),
        (described(host(inventories={"VCPU": DescribedInventory(8, step_size=0)})), "step_size 0"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(description: Description, words: str) -> None:
    with pytest.raises(DriverDataError, match=words):
        resolve(description, NOTHING, NOBODY, ROOT)


def test_what_we_own_survives_json() -> None:
    owned = first(host(aggregates=frozenset({AGGREGATE})), gpu()).owned
    kind = Mapping[str, OwnedProvider]
    written = json.loads(json.dumps(encode(kind, owned.providers)))
    assert decode(cast(Any, kind), written) == owned.providers


@pytest.mark.parametrize("record", [None, [], {"u": 1}, {"u": {"classes": "VCPU"}}, {"u": {"traits": [1]}}])
def test_a_damaged_record_of_what_we_own_is_an_error(record: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        decode(cast(Any, Mapping[str, OwnedProvider]), record)


def test_the_union_of_what_is_owned_before_and_after() -> None:
    before = OwnedProviders({"a": OwnedProvider(frozenset({"X"})), "b": OwnedProvider()})
    after = OwnedProviders({"a": OwnedProvider(frozenset({"Y"}), frozenset({"T"}))})
    assert before | after == OwnedProviders(
        {"a": OwnedProvider(frozenset({"X", "Y"}), frozenset({"T"})), "b": OwnedProvider()}
    )


def _described_gpus(draw: Mapping[str, int]) -> Description:
    return described(
        host(), *(gpu(name, inventories={"VGPU": DescribedInventory(n)}) for name, n in draw.items())
    )


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(["g1", "g2", "g3"]), st.integers(0, 3)), min_size=1, max_size=4),
    st.sampled_from([None, "g1"]),
)
def test_after_any_history_placement_holds_what_is_described_and_what_is_foreign(
    history: list[dict[str, int]], below: str | None
) -> None:
    current, owned = NOTHING, NOBODY
    theirs = None
    for step in history:
        resolved = resolve(_described_gpus(step), current, owned, ROOT)
        current, owned = resolved.tree, resolved.owned
        if theirs is None and (below is None or current.by_name(below)):
            parent = ROOT if below is None else uuid_of(below)
            theirs = Provider(FOREIGN, "theirs", parent, {"CUSTOM_X": Inventory(1)})
            current = current.with_provider(theirs)
        if theirs is not None:
            assert current[FOREIGN] == theirs
        for name, total in step.items():
            provider = current.by_name(name)
            assert provider is not None
            assert provider.inventories == ({"VGPU": Inventory(total, max_unit=total)} if total else {})
        for provider in current:
            if provider.name not in {"host", "theirs", *step}:
                assert theirs is not None
                assert theirs.parent == provider.uuid
                assert not provider.inventories
