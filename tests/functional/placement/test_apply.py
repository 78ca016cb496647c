"""Plans written through the real client into each real placement."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.placements import Placement
from kits.plans import apply_operation
from kits.tracker import fast_directory
from kits.wire import Wire, nothing

from agent.driver import DescribedInventory, DescribedProvider, Description
from agent.errors import (
    ApplyError,
    IdentityError,
    PlacementConflict,
    PlacementFull,
    PlacementUnavailable,
    SettingsError,
    StateError,
)
from agent.placement.apply import ATTEMPTS_MAX, apply
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import open_transport
from agent.placement.transport import Reply
from agent.providers.plan import Plan, plan
from agent.providers.resolve import OwnedProviders, resolve
from agent.tree import Inventory, Provider, ProviderTree

ROOT = "c0ffee00-0000-4000-8000-000000000001"
GPU = "c0ffee00-0000-4000-8000-000000000002"
OTHER = "c0ffee00-0000-4000-8000-000000000003"
AGGREGATE = "c0ffee00-0000-4000-8000-00000000000a"
CONSUMER = "c0ffee00-0000-4000-8000-0000000000c1"
MIGRATION = "c0ffee00-0000-4000-8000-0000000000c2"
EMPTY = ProviderTree()

HOST = Provider(ROOT, "host", None, {"VCPU": Inventory(16, max_unit=16)}, frozenset({"COMPUTE_NODE"}))
TREE = ProviderTree(
    [
        HOST,
        Provider(
            GPU,
            "host_gpu",
            ROOT,
            {"VGPU": Inventory(8)},
            frozenset({"CUSTOM_T4", "HW_CPU_X86_AVX2"}),
            frozenset({AGGREGATE}),
        ),
    ]
)


@pytest.fixture
def wire(placement: Placement) -> Iterator[Wire]:
    transport = Wire(placement.transport())
    yield transport
    transport.close()


@pytest.fixture
def client(wire: Wire) -> PlacementClient:
    return PlacementClient(wire)


@pytest.fixture
def other(wire: Wire) -> PlacementClient:
    """Somebody else who writes to the same placement."""
    return PlacementClient(wire.inner)


def error_reply(status: int) -> Reply:
    document = {"errors": [{"status": status, "title": "Forbidden", "detail": "Not by you."}]}
    return Reply(status, document)


def no_sleep(_seconds: float) -> None:
    pass


def reach(client: PlacementClient, current: ProviderTree, desired: ProviderTree) -> ProviderTree:
    return apply(plan(current, desired), client, current, sleep=no_sleep)


def test_a_plan_written_is_what_placement_holds(client: PlacementClient) -> None:
    written = reach(client, EMPTY, TREE)
    read = client.read_tree(ROOT)
    assert written == read == TREE
    assert {p.uuid: p.generation for p in written} == client.generations(ROOT)


def test_a_first_report_takes_two_requests_a_provider_and_a_few(client: PlacementClient, wire: Wire) -> None:
    description = Description(
        (
            DescribedProvider("host", None, {"VCPU": DescribedInventory(16)}, frozenset({"COMPUTE_NODE"})),
            *(
                DescribedProvider(
                    f"host_gpu{n}", "host", {"CUSTOM_FPGA": DescribedInventory(4)}, frozenset({"CUSTOM_T4"})
                )
                for n in range(20)
            ),
        )
    )
    desired = resolve(description, client.read_tree(ROOT), OwnedProviders(), ROOT).tree
    written = reach(client, EMPTY, desired)
    names, refused = 2, 1  # the first of the fleet to have them
    assert len(wire.calls) == 1 + names + refused + 2 * len(desired) + 1 <= 3 * len(desired) + 2
    assert {p.uuid: p.generation for p in written} == client.generations(ROOT)
    wire.calls.clear()
    resolved = resolve(description, written, OwnedProviders(), ROOT)
    assert reach(client, written, resolved.tree) == written
    assert wire.calls == []
    second = replace(description.providers[0], name="second")
    cards = (replace(each, name=f"second_{each.name}", parent="second") for each in description.providers[1:])
    there = resolve(Description((second, *cards)), EMPTY, OwnedProviders(), OTHER).tree
    reach(client, EMPTY, there)
    assert len(wire.calls) == 2 * len(there) + 1


def test_where_reshaping_is_not_allowed_inventories_are_offered_one_by_one(
    client: PlacementClient, wire: Wire
) -> None:
    wire.answer = lambda sent: error_reply(403) if sent.path == "/reshaper" else None
    assert reach(client, EMPTY, TREE) == TREE == client.read_tree(ROOT)
    assert sum(line.endswith("/inventories") and line.startswith("PUT") for line in wire.calls) == 2


def test_an_offer_that_somebody_overtakes_is_made_one_by_one(
    client: PlacementClient, other: PlacementClient, wire: Wire
) -> None:
    def meddle(call: str) -> None:
        if call == "POST /reshaper":
            generation = other.generations(ROOT)[GPU]
            other.put_traits(GPU, generation, {*TREE[GPU].traits, "HW_NUMA_ROOT"})

    wire.before = meddle
    foreign: list[str] = []
    after = apply(plan(EMPTY, TREE), client, EMPTY, sleep=no_sleep, read_again=foreign.append)
    assert foreign == [GPU]
    assert after == client.read_tree(ROOT)
    assert after[GPU].inventories == TREE[GPU].inventories and "HW_NUMA_ROOT" in after[GPU].traits
    assert {p.uuid: p.generation for p in after} == client.generations(ROOT)


def test_of_several_offers_the_one_that_placement_refuses_is_named(client: PlacementClient) -> None:
    desired = TREE.with_provider(replace(TREE[GPU], inventories={"VGPU": Inventory(0)}))
    with pytest.raises(ApplyError, match=r"operation 8 of 8 \(Put the inventories of host_gpu"):
        reach(client, EMPTY, desired)
    assert client.read_tree(ROOT)[ROOT].inventories == HOST.inventories


def test_one_changed_inventory_is_one_request(client: PlacementClient, wire: Wire) -> None:
    written = reach(client, EMPTY, TREE)
    wire.calls.clear()
    desired = written.with_provider(replace(HOST, inventories={"VCPU": Inventory(24, max_unit=24)}))
    assert reach(client, written, desired) == desired
    assert wire.calls == [f"PUT /resource_providers/{ROOT}/inventories"]


def test_a_claim_in_between_costs_three_reads_and_a_second_write(
    client: PlacementClient, other: PlacementClient, wire: Wire
) -> None:
    written = reach(client, EMPTY, TREE)
    other.write_allocations(ConsumerAllocations(CONSUMER, {ROOT: {"VCPU": 2}}))
    wire.calls.clear()
    desired = written.with_provider(replace(HOST, inventories={"VCPU": Inventory(24, max_unit=24)}))
    after = reach(client, written, desired)
    assert [line.split("/")[-1] for line in wire.calls] == [
        "inventories",
        "inventories",
        "traits",
        "aggregates",
        "inventories",
    ]
    assert after == desired == client.read_tree(ROOT)
    assert {p.uuid: p.generation for p in after} == client.generations(ROOT)


def test_what_others_changed_in_between_is_kept(client: PlacementClient, other: PlacementClient) -> None:
    written = reach(client, EMPTY, TREE)
    other.ensure_trait("CUSTOM_GOLD")
    other.ensure_resource_class("CUSTOM_LICENSE")
    generation = other.put_traits(ROOT, written[ROOT].generation or 0, HOST.traits | {"CUSTOM_GOLD"})
    license_ = {"CUSTOM_LICENSE": Inventory(5)}
    other.put_inventories(ROOT, generation, {**HOST.inventories, **license_})
    desired = written.with_provider(
        replace(HOST, inventories={"VCPU": Inventory(24)}, traits=frozenset({"HW_CPU_X86_AVX2"}))
    )
    reach(client, written, desired)
    now = client.read_tree(ROOT)[ROOT]
    assert now.inventories == {"VCPU": Inventory(24), **license_}
    assert now.traits == {"HW_CPU_X86_AVX2", "CUSTOM_GOLD"}


def test_a_contradiction_in_between_is_a_conflict_and_changes_nothing(
    client: PlacementClient, other: PlacementClient
) -> None:
    written = reach(client, EMPTY, TREE)
    theirs = {"VCPU": Inventory(4)}
    other.put_inventories(ROOT, written[ROOT].generation or 0, theirs)
    desired = written.with_provider(replace(HOST, inventories={"VCPU": Inventory(24)}))
    with pytest.raises(PlacementConflict, match="changed the inventory of VCPU on provider host"):
        reach(client, written, desired)
    assert client.read_tree(ROOT)[ROOT].inventories == theirs


def test_a_write_that_was_done_already_is_not_done_again(
    client: PlacementClient, other: PlacementClient
) -> None:
    written = reach(client, EMPTY, TREE)
    desired = written.with_provider(replace(HOST, inventories={"VCPU": Inventory(24)}))
    reach(other, written, desired)
    assert reach(client, written, desired) == desired == client.read_tree(ROOT)


def test_a_provider_that_is_written_all_the_time_ends_in_a_conflict(
    client: PlacementClient, other: PlacementClient, wire: Wire
) -> None:
    written = reach(client, EMPTY, TREE)
    pauses: list[float] = []

    def claim_and_release(call: str) -> None:
        if call.startswith("PUT"):
            other.write_allocations(ConsumerAllocations(CONSUMER, {ROOT: {"VCPU": 2}}))
            other.delete_allocations(CONSUMER)

    wire.before = claim_and_release
    wire.calls.clear()
    desired = written.with_provider(replace(HOST, inventories={"VCPU": Inventory(24)}))
    with pytest.raises(PlacementConflict):
        apply(plan(written, desired), client, written, sleep=pauses.append)
    assert sum(line.startswith("PUT") for line in wire.calls) == ATTEMPTS_MAX
    assert len(pauses) == ATTEMPTS_MAX - 2


def test_a_creation_whose_answer_was_lost_is_found(client: PlacementClient, other: PlacementClient) -> None:
    other.create_provider(HOST)
    assert reach(client, EMPTY, TREE) == TREE == client.read_tree(ROOT)


def test_a_foreign_provider_with_our_name_is_an_identity_error(
    client: PlacementClient, other: PlacementClient
) -> None:
    other.create_provider(Provider(OTHER, "host"))
    with pytest.raises(IdentityError, match=rf"already named 'host': {OTHER}, .*`plimsoll adopt {OTHER}`"):
        reach(client, EMPTY, TREE)
    assert client.read_tree(ROOT) == EMPTY


def test_a_foreign_provider_with_our_uuid_is_an_identity_error(
    client: PlacementClient, other: PlacementClient
) -> None:
    other.create_provider(Provider(ROOT, "another-host"))
    with pytest.raises(IdentityError, match=rf"`plimsoll adopt {ROOT}`"):
        reach(client, EMPTY, TREE)


def test_a_rename_to_a_foreign_name_is_an_identity_error(
    client: PlacementClient, other: PlacementClient
) -> None:
    written = reach(client, EMPTY, ProviderTree([HOST]))
    other.create_provider(Provider(OTHER, "taken"))
    with pytest.raises(IdentityError, match=OTHER):
        reach(client, written, ProviderTree([replace(HOST, name="taken")]))


def test_inventory_in_use_stops_the_plan_and_is_named(client: PlacementClient) -> None:
    written = reach(client, EMPTY, TREE)
    client.write_allocations(ConsumerAllocations(CONSUMER, {GPU: {"VGPU": 1}}))
    with pytest.raises(ApplyError) as raised:
        reach(client, written, ProviderTree([HOST]))
    error = raised.value
    assert "operation 1 of 2 (Delete the inventories of host_gpu: VGPU 8 -> none)" in error.message
    assert error.details["done"] == []
    assert error.details["operation"]["operation"] == "delete_inventories"
    assert client.read_tree(ROOT) == TREE


@pytest.mark.parametrize("failing", range(1, 11))
def test_a_plan_that_was_cut_off_is_finished_by_the_next(
    client: PlacementClient, wire: Wire, failing: int
) -> None:
    def fail(_: str) -> None:
        if len(wire.calls) == failing:
            raise PlacementUnavailable("Placement did not answer.")

    wire.before = fail
    try:
        reach(client, EMPTY, TREE)
    except ApplyError as error:
        assert isinstance(error.__cause__, PlacementUnavailable)
        assert error.details["cause"] == "plimsoll.placement.unavailable"
        refused = "PUT /traits/CUSTOM_T4" in wire.calls  # the trait is made once it was missed
        assert len(error.details["done"]) == failing - 1 - refused
    else:
        assert failing > len(plan(EMPTY, TREE).operations)  # two inventories are one request
    wire.before = nothing
    current = client.read_tree(ROOT)
    assert reach(client, current, TREE) == TREE == client.read_tree(ROOT)


def test_a_provider_is_renamed_moved_and_deleted(client: PlacementClient) -> None:
    written = reach(client, EMPTY, TREE)
    cell = Provider(OTHER, "host_gpu", ROOT, {"PCPU": Inventory(4)}, frozenset({"HW_NUMA_ROOT"}))
    moved = replace(TREE[GPU], name="gpu", parent=OTHER)
    desired = ProviderTree([replace(HOST, name="host-b"), cell, moved])
    written = reach(client, written, desired)
    assert written == client.read_tree(ROOT) == desired
    written = reach(client, written, ProviderTree([replace(moved, parent=ROOT), HOST]))
    assert client.read_tree(ROOT) == written
    assert len(written) == 2


def test_claims_are_written_read_swapped_and_released(client: PlacementClient) -> None:
    reach(client, EMPTY, TREE)
    absent = client.allocations_of(CONSUMER)
    assert (absent.allocations, absent.generation) == ({}, None)
    client.write_allocations(replace(absent, allocations={ROOT: {"VCPU": 2}, GPU: {"VGPU": 1}}))
    held = client.allocations_of(CONSUMER)
    assert held == ConsumerAllocations(CONSUMER, {ROOT: {"VCPU": 2}, GPU: {"VGPU": 1}}, 1)
    assert client.provider_allocations(GPU).consumers == {CONSUMER: {"VGPU": 1}}
    assert client.provider_usages(ROOT) == {"VCPU": 2}
    client.write_allocations(
        replace(held, allocations={ROOT: {"VCPU": 16}}),
        ConsumerAllocations(MIGRATION, {GPU: {"VGPU": 8}}, consumer_type="MIGRATION"),
    )
    migration = client.allocations_of(MIGRATION)
    assert (migration.allocations, migration.consumer_type) == ({GPU: {"VGPU": 8}}, "MIGRATION")
    with pytest.raises(PlacementConflict):
        client.write_allocations(replace(held, allocations={ROOT: {"VCPU": 1}}))
    with pytest.raises(PlacementFull) as full:
        client.write_allocations(ConsumerAllocations(OTHER, {ROOT: {"VCPU": 1}}))
    assert full.value.placement_code == "placement.undefined_code"
    client.write_allocations(replace(migration, allocations={}))
    assert client.allocations_of(MIGRATION).generation is None
    assert client.delete_allocations(CONSUMER)
    assert not client.delete_allocations(CONSUMER)
    assert client.provider_usages(GPU) == {"VGPU": 0}


def test_inventory_and_the_claims_on_it_move_in_one_request(client: PlacementClient) -> None:
    bare = replace(TREE[GPU], inventories={})
    on_root = ProviderTree([replace(HOST, inventories={"VGPU": Inventory(8)}), bare])
    written = reach(client, EMPTY, on_root)
    client.write_allocations(ConsumerAllocations(CONSUMER, {ROOT: {"VGPU": 3}}))
    generations = client.generations(ROOT)
    held = client.allocations_of(CONSUMER)
    client.reshape(
        {ROOT: (generations[ROOT], {}), GPU: (generations[GPU], {"VGPU": Inventory(8)})},
        replace(held, allocations={GPU: {"VGPU": 3}}),
    )
    assert client.provider_allocations(GPU).consumers == {CONSUMER: {"VGPU": 3}}
    assert client.read_tree(ROOT, known=written)[GPU].inventories == {"VGPU": Inventory(8)}


def test_the_versions_of_the_service(client: PlacementClient) -> None:
    assert client.versions() == ("1.0", "1.39")


def test_a_kind_of_placement_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingsError, match="'embedded' or 'remote', not 'elsewhere'"):
        open_transport("elsewhere")
    with pytest.raises(SettingsError, match="state directory"):
        open_transport("embedded")


def test_the_embedded_kind_loads_no_http_client(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from agent.placement.connect import open_transport;"
        f"open_transport('embedded', state_dir=pathlib.Path({str(tmp_path)!r})).close();"
        "print({'keystoneauth1', 'requests'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout == "set()\n"


def test_a_state_directory_in_use_is_a_state_error(tmp_path: Path) -> None:
    with (
        closing(open_transport("embedded", state_dir=tmp_path)),
        pytest.raises(StateError, match="in use"),
    ):
        open_transport("embedded", state_dir=tmp_path)


some_inventories = st.dictionaries(
    st.sampled_from(["VCPU", "CUSTOM_X"]), st.builds(Inventory, total=st.integers(1, 4)), max_size=2
)
some_traits = st.frozensets(st.sampled_from(["CUSTOM_T", "HW_NUMA_ROOT"]))
some_aggregates = st.frozensets(st.just(AGGREGATE))


@st.composite
def trees(draw: st.DrawFn) -> ProviderTree:
    """Trees under one root that share, swap and re-use few uuids and names."""
    uuids = [ROOT, *draw(st.permutations([GPU, OTHER, CONSUMER]))[: draw(st.integers(0, 3))]]
    names = draw(st.permutations(list("abcde")))
    return ProviderTree(
        Provider(
            uuid,
            names[n],
            draw(st.sampled_from(uuids[:n])) if n else None,
            draw(some_inventories),
            draw(some_traits),
            draw(some_aggregates),
        )
        for n, uuid in enumerate(uuids)
    )


def examples(
    placement: Placement, few: int, many: int
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Fewer on a placement where each request takes milliseconds."""
    return settings(max_examples=many if placement.kind == "embedded" else few, deadline=None)


def connected(placement: Placement, directory: str) -> PlacementClient:
    return PlacementClient(placement.anew(Path(directory)).transport())


def test_what_a_plan_foretells_is_what_placement_shows_after_each_operation(placement: Placement) -> None:
    @examples(placement, 4, 40)
    @given(st.lists(trees(), min_size=1, max_size=3))
    def check(history: list[ProviderTree]) -> None:
        with fast_directory() as directory, closing(connected(placement, directory)) as client:
            current = EMPTY
            for desired in history:
                for operation in plan(current, desired).operations:
                    foretold = apply_operation(current, operation)
                    current = apply(Plan((operation,)), client, current, sleep=no_sleep)
                    assert current == foretold == client.read_tree(ROOT)
                assert current == desired
                assert {p.uuid: p.generation for p in current} == client.generations(ROOT)

    check()


names = st.sampled_from(["a", "b", "c", "d"])
totals = st.dictionaries(st.sampled_from(["VCPU", "CUSTOM_X"]), st.integers(1, 4), max_size=2)
devices = st.dictionaries(
    names, st.tuples(names, totals, st.frozensets(st.sampled_from(["CUSTOM_T", "HW_NUMA_ROOT"])))
)


History = list[dict[str, tuple[str, dict[str, int], frozenset[str]]]]


def test_whatever_is_described_one_after_the_other_is_reached(placement: Placement) -> None:
    @examples(placement, 4, 30)
    @given(st.lists(devices, min_size=1, max_size=4))
    def check(history: History) -> None:
        with fast_directory() as directory, closing(connected(placement, directory)) as client:
            current, owned = EMPTY, OwnedProviders()
            for step in history:
                resolved = resolve(described(step), current, owned, ROOT)
                current, owned = reach(client, current, resolved.tree), resolved.owned
                assert current == resolved.tree == client.read_tree(ROOT)
                assert len(current) == len({"host", *step})

    check()


def described(step: dict[str, tuple[str, dict[str, int], frozenset[str]]]) -> Description:
    found = {"host": DescribedProvider("host")}
    for name, (parent, amounts, traits) in step.items():
        above = parent if parent in found else "host"
        inventories = {each: DescribedInventory(total) for each, total in amounts.items()}
        found[name] = DescribedProvider(name, above, inventories, traits)
    return Description(tuple(found.values()))
