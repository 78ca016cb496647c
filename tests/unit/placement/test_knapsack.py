"""The most guests that fit at once, against brute force."""

from functools import cache
from random import Random

from kits.examples import examples

from agent.placement.knapsack import pack
from agent.shapes import Allocations, Usages


def brute_most(ways: list[Allocations], free: Usages) -> int:
    """Each way is tried for each guest."""
    spots = [(uuid, name) for uuid in free for name in free[uuid]]

    @cache
    def most(left: tuple[int, ...]) -> int:
        rest = [
            tuple(n - way.get(uuid, {}).get(name, 0) for (uuid, name), n in zip(spots, left, strict=True))
            for way in ways
        ]
        return max((1 + most(each) for each in rest if min(each) >= 0), default=0)

    return most(tuple(free[uuid][name] for uuid, name in spots))


def random_ways(random: Random) -> tuple[list[Allocations], Usages]:
    """Guests of one or two parts of a class, each part on a provider, and maybe some of another class."""
    uuids = "abcd"[: random.randint(1, 4)]
    parts = [random.choice((1, 2, 3)) for _ in range(random.choice((1, 2, 2)))]
    other, apart = random.choice((0, 0, 1, 2)), random.random() < 0.5
    ways = []
    for first in uuids:
        for second in uuids:
            if apart and len(parts) > 1 and first == second:
                continue
            for beside in uuids:
                way: dict[str, dict[str, int]] = {}
                for part, uuid in zip(parts, (first, second), strict=False):
                    amounts = way.setdefault(uuid, {})
                    amounts["VCPU"] = amounts.get("VCPU", 0) + part
                if other:
                    way.setdefault(beside, {})["VGPU"] = other
                ways += [way] if way not in ways else []
    return list(ways), {uuid: {name: random.randint(0, 6) for name in ("VCPU", "VGPU")} for uuid in uuids}


def test_as_many_guests_have_places_as_brute_force_finds() -> None:
    for seed in range(examples(1000)):
        random = Random(seed)
        ways, free = random_ways(random)
        most, need = brute_most(ways, free), random.choice((2, 100))
        packed = pack(ways, free, need, 100_000)
        assert sum(packed.times, 0) == packed.most == min(most, need), f"seed {seed}"
        for uuid, amounts in free.items():
            for name, amount in amounts.items():
                taken = [
                    n * way.get(uuid, {}).get(name, 0) for n, way in zip(packed.times, ways, strict=True)
                ]
                assert sum(taken) <= amount, f"seed {seed}"
        hurried = pack(ways, free, need, random.choice((0, 3)))
        assert sum(hurried.times) <= min(most, need) <= hurried.most, f"seed {seed}"


def test_guests_over_two_of_four_cells_need_no_search() -> None:
    free = {"a": {"VCPU": 57}, "b": {"VCPU": 14}, "c": {"VCPU": 13}, "d": {"VCPU": 3}}
    pairs = [(one, other) for other in free for one in free if one < other]
    packed = pack([{one: {"VCPU": 1}, other: {"VCPU": 1}} for one, other in pairs], free, 1000, 0)
    assert sum(packed.times) == packed.most == 14 + 13 + 3
