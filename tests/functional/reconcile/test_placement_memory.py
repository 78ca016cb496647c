"""What the passes remember of Placement: only what may have changed is read again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.reshape import ROOT, World, host, provider

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.errors import ApplyError, StateError
from agent.placement.client import PlacementClient
from agent.reconcile.placement_memory import AllocationCache, check_home, go_on_without
from agent.reconcile.reconciler import went_back
from agent.shapes import Amounts, Held
from agent.tree import Inventory, Provider, ProviderTree


@pytest.fixture
def world(world: World) -> World:
    world.see(host(), provider("gpu0", VGPU=4))
    return world


def reads(world: World) -> list[str]:
    calls = [call for call in world.tap.calls if call.endswith("/allocations")]
    world.tap.calls.clear()
    return calls


def test_a_provider_is_read_again_only_if_its_generation_changed_or_it_is_doubted(world: World) -> None:
    gpu = world.uuid("gpu0")
    consumer = world.hold("a", gpu0={"VGPU": 1})
    cache = AllocationCache(PlacementClient(world.tap), world.tree(), {gpu: {consumer: {"VGPU": 1}}})
    world.tap.calls.clear()
    assert cache.read(world.tree(), ()) == ({gpu: {consumer: {"VGPU": 1}}}, set()), "as it was saved"
    assert cache.read(world.tree(), ()) == ({}, {gpu, ROOT}), "the book has it"
    assert reads(world) == []
    assert cache.read(world.tree(), {gpu}) == ({gpu: {consumer: {"VGPU": 1}}}, {ROOT})
    assert reads(world) == [f"GET /resource_providers/{gpu}/allocations"]
    other = world.hold("b", gpu0={"VGPU": 2})
    assert cache.read(world.tree(), ()).held[gpu].keys() == {consumer, other}
    assert reads(world) == [f"GET /resource_providers/{gpu}/allocations"]
    cache.forget()
    assert cache.read(world.tree(), ()).held[gpu].keys() == {consumer, other}, "it was not entered"


def test_the_agents_own_writes_cost_no_read_and_those_of_others_do(world: World) -> None:
    before = world.tree()
    cache = AllocationCache(PlacementClient(world.tap), before, {})
    for uuid in (ROOT, world.uuid("gpu0")):
        world.raw.put_traits(uuid, before[uuid].generation or 0, {"HW_CPU_X86_VMX"})
    after = world.tree()
    cache.follow_writes(before, after, {ROOT})
    world.tap.calls.clear()
    assert cache.read(after, ()).held == {}
    assert reads(world) == [f"GET /resource_providers/{ROOT}/allocations"]


SOME = {"VCPU": Inventory(8)}


def at(generation: int | None, inventories: Mapping[str, Inventory] | None = None) -> ProviderTree:
    """A tree with the provider p at this generation; without it, if None."""
    found = Provider("p", "p", None, SOME if inventories is None else inventories, generation=generation)
    return ProviderTree([found] if generation is not None else [])


@pytest.mark.parametrize(
    ("known", "before", "after", "foreign", "is_read"),
    [
        (at(3), at(3), at(5), set(), False),
        (at(3), at(4), at(5), set(), True),
        (at(3), at(3), at(5), {"p"}, True),
        (at(None), at(None), at(1), set(), False),
        (at(None), at(2, {}), at(3), set(), False),
        (at(None), at(2), at(3), set(), True),
        (at(0), at(0), at(1), set(), False),
    ],
)
def test_a_write_of_the_agent_hides_none_that_came_before_it(
    known: ProviderTree, before: ProviderTree, after: ProviderTree, foreign: set[str], *, is_read: bool
) -> None:
    asked = []

    def allocations(uuid: str) -> SimpleNamespace:
        asked.append(uuid)
        return SimpleNamespace(consumers={})

    client: Any = SimpleNamespace(provider_allocations=allocations)
    cache = AllocationCache(client, known, {})
    cache.follow_writes(before, after, foreign)
    assert cache.read(after, ()).kept == (set() if is_read or "p" in known else {"p"})
    assert asked == ["p"] * is_read


@pytest.mark.parametrize(
    ("inventories", "held", "asked", "used", "otherwise"),
    [
        ({"VCPU": Inventory(8)}, {}, None, {}, set()),
        ({"VCPU": Inventory(8)}, {"p": {"c": {"VCPU": 2}}}, ("VCPU", 1), {"p": {"VCPU": 2}}, set()),
        ({"VCPU": Inventory(8)}, {"p": {"c": {"VCPU": 2}}}, ("VCPU", 1), {"p": {"VCPU": 1}}, {"p"}),
        ({"VCPU": Inventory(8)}, {"p": {"c": {"VCPU": 2}}}, ("VCPU", 1), {}, {"p"}),
        ({"VCPU": Inventory(8)}, {"p": {"c": {"VCPU": 2}}}, ("VCPU", 1), None, {"p"}),
        ({"VCPU": Inventory(2)}, {"p": {"c": {"VCPU": 2}}}, None, {}, {"p"}),
        (
            {"VCPU": Inventory(9, min_unit=3, step_size=2, max_unit=5)},
            {"p": {"c": {"VCPU": 4}}},
            ("VCPU", 4),
            {"p": {"VCPU": 4}},
            set(),
        ),
        (
            {"VCPU": Inventory(9, min_unit=3, step_size=2, max_unit=3)},
            {"p": {"c": {"VCPU": 4}}},
            None,
            {},
            {"p"},
        ),
        (
            {"VCPU": Inventory(8), "DISK_GB": Inventory(9, step_size=2)},
            {"p": {"c": {"VCPU": 5, "DISK_GB": 2}, "d": {"VCPU": 1}}},
            ("DISK_GB", 2),
            {"p": {"VCPU": 6, "DISK_GB": 2}},
            set(),
        ),
        (
            {"VCPU": Inventory(8), "MEMORY_MB": Inventory(1000, min_unit=500)},
            {"p": {"c": {"VCPU": 2}}},
            ("VCPU", 1),
            {"p": {"VCPU": 2}},
            set(),
        ),
    ],
)
def test_what_is_in_use_is_asked_beside_the_least_amount_of_the_roomiest_class(
    inventories: dict[str, Inventory],
    held: Held,
    asked: tuple[str, int] | None,
    used: Mapping[str, Amounts] | None,
    otherwise: set[str],
) -> None:
    """No request where nothing is in use; where it cannot tell, all are read."""
    requests = []

    def usages(root: str, *wanted: object) -> Mapping[str, Amounts] | None:
        requests.append((root, *wanted))
        return used

    client: Any = SimpleNamespace(tree_usages=usages)
    cache = AllocationCache(client, ProviderTree(), {})
    tree = ProviderTree([*at(1, inventories), Provider("q", "q", "p")])
    assert cache.used_otherwise("p", tree, held) == otherwise
    assert requests == ([] if asked is None else [("p", *asked)])


@pytest.mark.parametrize(
    ("before", "now", "is_older"),
    [(1, 0, True), (1, 1, False), (1, 2, False), (0, 0, False), (None, 0, False), (1, None, False)],
)
def test_a_placement_that_was_restored_has_an_older_generation(
    before: int | None, now: int | None, *, is_older: bool
) -> None:
    """Placement itself only raises them; a provider that is new or gone shows nothing."""
    assert went_back(at(before), at(now)) is is_older


HOME = "the remote placement https://here"
HELD = {ROOT: {"VCPU": 2}}


@pytest.mark.parametrize(
    ("before", "holds", "knows", "outcome"),
    [
        ("", {}, set(), False),
        (HOME, {}, {ROOT}, False),
        (HOME, {}, {"the root"}, False),
        (HOME, HELD, set(), False),
        (HOME, {}, set(), "has 1 claim .web1., but .* no longer knows its providers"),
        ("elsewhere", HELD, set(), False),
        ("elsewhere", {ROOT: {"VCPU": 3}}, set(), False),
        ("elsewhere", {ROOT: {"VCPU": 1}}, {ROOT}, "comes from elsewhere, and .* not hold 1 of its 1 claim"),
        ("elsewhere", {}, {ROOT}, "Stop the agent and bring them over"),
        (f"adopted, from {HOME}", {}, set(), True),
        ("adopted, from elsewhere", HELD, set(), False),
        ("adopted, from elsewhere", {}, set(), "comes from elsewhere"),
    ],
)
def test_a_placement_that_does_not_have_the_host_s_claims_is_not_written(
    tmp_path: Path, before: str, holds: Held, knows: set[str], outcome: bool | str
) -> None:
    """A claim in doubt is none that Placement must have."""
    file = tmp_path / "placement_home"
    if before:
        file.write_text(f"{before}\n")
    client: Any = SimpleNamespace(
        allocations_of=lambda consumer: SimpleNamespace(allocations=holds),
        find_provider=lambda uuid: uuid if uuid in knows else None,
    )
    granted = Claim("c", ClaimState.CLAIMED, ClaimRequest("c", (), name="web1"), HELD)
    claims = [granted, replace(granted, state=ClaimState.RELEASING, allocations={"other": {"VCPU": 1}})]
    if isinstance(outcome, str):
        with pytest.raises(ApplyError, match=outcome) as refused:
            check_home(tmp_path, client, HOME, "the root", claims)
        assert refused.value.details["consumers"] == ["c"]
        assert file.read_text() == f"{before}\n"
    else:
        assert check_home(tmp_path, client, HOME, "the root", claims) is outcome
        assert file.read_text() == f"{HOME}\n"


@pytest.mark.parametrize(("number", "named"), [(3, r"\(a, b, c\)"), (4, r"\(a, b, c and 1 more\)")])
def test_three_of_the_claims_that_placement_does_not_hold_are_named(
    tmp_path: Path, number: int, named: str
) -> None:
    (tmp_path / "placement_home").write_text("elsewhere\n")
    client: Any = SimpleNamespace(allocations_of=lambda consumer: SimpleNamespace(allocations={}))
    claims = [Claim(name, ClaimState.CLAIMED, ClaimRequest(name, ()), HELD) for name in "abcd"[:number]]
    with pytest.raises(ApplyError, match=named):
        check_home(tmp_path, client, HOME, ROOT, claims)


def test_a_name_of_the_placement_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    client: Any = None
    with pytest.raises(StateError, match="none/placement_home cannot be written: No such file or directory"):
        check_home(tmp_path / "none", client, HOME, ROOT, ())
    (tmp_path / "placement_home").mkdir()
    with pytest.raises(StateError, match=r"placement_home cannot be read: .*Is a directory"):
        check_home(tmp_path, client, HOME, ROOT, ())


@pytest.mark.parametrize("times", [1, 2])
def test_to_go_on_without_what_placement_lost_is_said_for_one_start(
    world: World, tmp_path: Path, times: int
) -> None:
    def is_told() -> bool:
        return check_home(tmp_path, world.raw, "that of http://keystone, region any", ROOT, ())

    go_on_without(tmp_path)
    assert [is_told(), is_told()] == [False, False], "nothing was known yet"
    for _ in range(times):
        go_on_without(tmp_path)
    assert [is_told(), is_told()] == [True, False]
