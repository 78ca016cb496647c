"""Ordered alternatives over the real API: in flavors, claims and moves; which one was taken is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.gate import GatedHost, gated

from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest, RequestGroup, with_others
from agent.device_names import LIVE_MIGRATABLE
from agent.errors import DoesNotFit
from agent.tracker.tracker import ClaimHandle
from drivers.fake.host import Gpu, cell
from plimsoll import Agent, Conflict, InvalidRequest, Refused

H100, L40S = "CUSTOM_GPU_H100", "CUSTOM_GPU_L40S"
SPECS = {
    f"resources:{H100}": "1",
    f"plimsoll:or2:resources:{H100}": "",
    f"plimsoll:or2:resources:{L40S}": "2",
}
FLAVOR = {"vcpus": 1, "memory_mb": 64, "extra_specs": SPECS}
BIGGER = {"vcpus": 2, "memory_mb": 128, "extra_specs": {**SPECS, f"plimsoll:or2:resources:{L40S}": "4"}}
BY_GROUPS = {
    "groups": [{"resources": {"VCPU": 1, H100: 1}}],
    "alternatives": [{"groups": [{"resources": {"VCPU": 1, L40S: 2}}]}],
}


def cards(host: GatedHost, **totals: int) -> None:
    """Let the host have these cards, each with so many units: `h100`, `l40s`, `vramN` with N MiB a unit.

    Those with VRAM are under a driver of VFIO that can migrate them.
    """
    names, can_migrate = {"h100": H100, "l40s": L40S}, frozenset({LIVE_MIGRATABLE})
    gpus = [
        Gpu(f"0000:8{number}:00.0", names[card], total)
        if card in names
        else Gpu(
            f"0000:8{number}:00.0", f"CUSTOM_VRAM_{card.removeprefix('vram')}MB", total, traits=can_migrate
        )
        for number, (card, total) in enumerate(totals.items())
        if total
    ]
    host.driver.change(cells=(cell(0, frozenset(range(16)), 4096),), gpus=tuple(gpus), nics=())
    host.world.agent.reconcile("its cards")


class Pair:
    """Two hosts on one Placement, each with a client of its API."""

    def __init__(self, a: GatedHost, b: GatedHost, stack: ExitStack) -> None:
        self.a, self.b = a, b
        self.on_a, self.on_b = (stack.enter_context(Agent(str(host.socket))) for host in (a, b))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        a = stack.enter_context(gated(tmp_path / "a"))
        b = stack.enter_context(gated(tmp_path / "b", "node2", a.world.wire))
        yield Pair(a, b, stack)


@pytest.mark.parametrize("asked", [{"flavor": FLAVOR}, BY_GROUPS], ids=["flavor", "groups"])
def test_the_first_alternative_that_fits_is_claimed_and_shown(pair: Pair, asked: dict[str, Any]) -> None:
    cards(pair.a, l40s=4)
    told = pair.on_a.explain_claim(asked)
    assert (told.fits, told.alternative, told.alternatives) == (True, 2, 2)
    (refused,) = told.refused or ()
    assert refused.alternative == 1
    assert {short.resource_class for short in refused.shortfalls} == {H100}
    claim = pair.on_a.claim(asked, name="ai1")
    assert claim.request.alternative == 2
    assert pair.on_a.claim(asked, name="ai1") == claim, "the same claim again claims nothing more"
    assert "alternative 2, " in str(pair.on_a.explain("ai1"))
    cards(pair.a, h100=1, l40s=4)
    assert pair.on_a.claim(asked, name="ai1") == claim, "also where the first one would fit by now"
    assert pair.on_a.explain_claim(asked, consumer=claim.consumer).alternative == 2
    assert pair.on_a.claim(asked, name="ai2").request.alternative == 1


def test_a_refusal_says_why_of_each_alternative_and_changes_nothing(pair: Pair) -> None:
    cards(pair.a, l40s=1)
    with pytest.raises(Refused) as caught:
        pair.on_a.claim({"flavor": FLAVOR}, name="ai1")
    assert caught.value.message.startswith("None of 2 alternatives is granted. 1: The claim of ai1 ")
    first, _, second = caught.value.message.partition(" 2: ")
    assert H100 in first
    assert f"2 {L40S}" not in first
    assert f"2 {L40S} asked, 1 free" in second
    told = pair.on_a.explain_claim({"flavor": FLAVOR})
    assert not told.fits
    assert told.alternative == 1
    assert [each.alternative for each in told.refused or ()] == [2]
    assert pair.a.world.operations.tracker.claims() == {}


def test_which_alternative_was_taken_is_kept_over_a_restart(tmp_path: Path) -> None:
    with gated(tmp_path / "a") as host, Agent(str(host.socket)) as agent:
        cards(host, l40s=2)
        claim = agent.claim({"flavor": FLAVOR})
    with gated(tmp_path / "a") as host, Agent(str(host.socket)) as agent:
        assert agent.show_claim(claim.consumer).request.alternative == 2


@pytest.mark.parametrize("kind", ["cold_migrate", "live_migrate", "evacuate", "resize"])
def test_a_move_takes_the_alternative_that_the_instance_has(pair: Pair, kind: str) -> None:
    cards(pair.a, l40s=4)
    cards(pair.b, h100=1, l40s=8)
    flavor = {"flavor": BIGGER if kind == "resize" else FLAVOR}
    consumer = pair.on_a.claim({"flavor": FLAVOR}).consumer
    move = pair.on_b.begin_move(kind, flavor, consumer=consumer)
    assert move.new is not None
    assert move.new.request.alternative == 2, "the first one would fit"
    again = pair.on_b.begin_move(kind, flavor, consumer=consumer, migration=move.migration)
    assert again.new is not None
    assert again.new.allocations == move.new.allocations
    pair.on_b.confirm_move(move.migration)
    assert pair.on_b.show_claim(consumer).request.alternative == 2
    pair.a.world.agent.verify()
    back = pair.on_a.begin_move("cold_migrate", flavor, consumer=consumer)
    assert back.new is not None
    assert back.new.request.alternative == 2
    pair.on_a.revert_move(back.migration)
    assert pair.on_b.show_claim(consumer).request.alternative == 2


def test_a_move_takes_another_alternative_only_if_asked(pair: Pair) -> None:
    cards(pair.a, l40s=4)
    cards(pair.b, h100=1)
    asked = {"flavor": FLAVOR}
    consumer = pair.on_a.claim(asked).consumer
    with pytest.raises(
        Refused, match=f"2 {L40S} asked, 0 free.* A move keeps alternative 2 of 2; --alternative"
    ):
        pair.on_b.begin_move("cold_migrate", asked, consumer=consumer)
    with pytest.raises(
        InvalidRequest, match="The move is to take alternative 3, and the request has 2: name"
    ):
        pair.on_b.begin_move("cold_migrate", asked, consumer=consumer, alternative=3)
    for number in (1, 0):
        move = pair.on_b.begin_move("cold_migrate", asked, consumer=consumer, alternative=number)
        assert move.new is not None
        assert move.new.request.alternative == 1
        again = pair.on_b.begin_move(
            "cold_migrate", asked, consumer=consumer, migration=move.migration, alternative=number
        )
        assert again.migration == move.migration
        pair.on_b.revert_move(move.migration)
    assert pair.on_a.show_claim(consumer).request.alternative == 2


def test_a_live_migration_takes_no_alternative_of_other_devices(pair: Pair) -> None:
    """The guest runs on with the devices that it has, for each number that is asked for."""
    cards(pair.a, l40s=4)
    cards(pair.b, h100=1)
    asked = {"flavor": FLAVOR}
    consumer = pair.on_a.claim(asked).consumer
    lacks = f"2 {L40S} asked, 0 free"
    for number, why in ((1, f"holds 2 {L40S}, .* a live migration keeps"), (0, lacks), (None, lacks)):
        with pytest.raises(Refused, match=why) as refused:
            pair.on_b.begin_move("live_migrate", asked, consumer=consumer, alternative=number)
        assert "--alternative" not in str(refused.value)
    cards(pair.b, h100=1, l40s=2)
    for number in (0, 2):
        move = pair.on_b.begin_move("live_migrate", asked, consumer=consumer, alternative=number)
        assert move.new is not None
        assert move.new.request.alternative == 2
        again = pair.on_b.begin_move(
            "live_migrate", asked, consumer=consumer, migration=move.migration, alternative=number
        )
        assert again.migration == move.migration
        pair.on_b.revert_move(move.migration)


def test_a_resize_and_a_rebuild_in_place_keep_the_alternative(pair: Pair) -> None:
    cards(pair.a, l40s=8)
    consumer = pair.on_a.claim({"flavor": FLAVOR}).consumer
    cards(pair.a, h100=1, l40s=8)
    move = pair.on_a.begin_move("resize", {"flavor": BIGGER}, consumer=consumer)
    pair.on_a.confirm_move(move.migration)
    claim = pair.on_a.show_claim(consumer)
    assert claim.request.alternative == 2
    assert {name for each in claim.allocations.values() for name in each.resources} >= {L40S}
    for asked in ({"flavor": BIGGER}, {"groups": [{"resources": {"VCPU": 2, "MEMORY_MB": 128, L40S: 4}}]}):
        move = pair.on_a.begin_move("rebuild", asked, consumer=consumer)
        pair.on_a.confirm_move(move.migration)
        assert pair.on_a.show_claim(consumer).request.alternative == 2
    move = pair.on_a.begin_move("resize", {"flavor": BIGGER}, consumer=consumer, alternative=0)
    assert move.new is not None
    assert move.new.request.alternative == 1


def test_a_resize_of_an_instance_that_had_no_alternatives_takes_the_first_that_fits(pair: Pair) -> None:
    cards(pair.a, l40s=4)
    cards(pair.b, l40s=4)
    consumer = pair.on_a.claim(resources={"VCPU": 1, "MEMORY_MB": 64}).consumer
    move = pair.on_b.begin_move("resize", {"flavor": FLAVOR}, consumer=consumer)
    assert move.new is not None
    assert move.new.request.alternative == 2


def test_a_move_does_not_guess_and_is_begun_by_what_the_claim_says_of_itself(pair: Pair) -> None:
    cards(pair.a, l40s=4)
    cards(pair.b, l40s=4)
    amounts = {"VCPU": 1, L40S: 1}
    asked = {
        "groups": [{"resources": amounts, "required": ["!CUSTOM_OLD"]}],
        "alternatives": [{"groups": [{"resources": amounts}]}],
    }
    consumer = pair.on_a.claim(asked).consumer
    with pytest.raises(InvalidRequest, match="may be of alternatives 1, 2 of the request: name one"):
        pair.on_b.begin_move("cold_migrate", asked, consumer=consumer)
    move = pair.on_b.begin_move("cold_migrate", encoded(pair.on_a.show_claim(consumer).request))
    assert move.new is not None
    assert move.new.request.alternative == 1


def encoded(request: Any) -> dict[str, Any]:
    from plimsoll.values import encode

    body: dict[str, Any] = encode(request)
    return body


def vram(number: int) -> dict[str, Any]:
    return {"groups": [{"resources": {"VCPU": 1, "CUSTOM_VRAM_MB": number}}]}


def test_sizes_of_vram_are_ways_to_serve_one_alternative_and_have_its_number(pair: Pair) -> None:
    cards(pair.a, vram8192=1, vram20480=1, l40s=2)
    cards(pair.b, vram4096=1, vram8192=1, vram20480=1)

    def sizes(move: Any) -> set[str]:
        return {name for each in move.new.allocations.values() for name in each.resources} - {"VCPU"}

    either = {**vram(3000), "alternatives": [{"groups": [{"resources": {"VCPU": 1, L40S: 1}}]}]}
    claim = pair.on_a.claim(vram(3000))
    assert claim.request.alternative is None
    assert pair.on_a.claim(either).request.alternative == 1
    assert pair.on_a.claim(either).request.alternative == 2, "not 3, though there are two sizes"
    assert pair.on_a.claim(either).request.alternative == 2
    with pytest.raises(Refused, match=r"None of 2 alternatives is granted\. 1: .* 1: .* 2: "):
        pair.on_a.claim(either)
    for kind in ("live_migrate", "cold_migrate"):
        move = pair.on_b.begin_move(kind, vram(3000), consumer=claim.consumer)
        assert sizes(move) == {"CUSTOM_VRAM_8192MB"}, "the one that it has, though a smaller one would do"
        pair.on_b.revert_move(move.migration)
    for kind, size in (("live_migrate", "CUSTOM_VRAM_8192MB"), ("cold_migrate", "CUSTOM_VRAM_4096MB")):
        move = pair.on_b.begin_move(kind, vram(3000), consumer=claim.consumer, alternative=0)
        assert sizes(move) == {size}
        pair.on_b.revert_move(move.migration)
    move = pair.on_b.begin_move("resize", vram(9000), consumer=claim.consumer)
    assert sizes(move) == {"CUSTOM_VRAM_20480MB"}
    pair.on_b.revert_move(move.migration)
    cards(pair.b, vram4096=1, vram20480=1)
    move = pair.on_b.begin_move("cold_migrate", vram(3000), consumer=claim.consumer)
    assert sizes(move) == {"CUSTOM_VRAM_4096MB"}, "the smallest, where there are none of that size"
    pair.on_b.revert_move(move.migration)
    for number in (3000, 9000):  # several sizes of the destination serve it, or one alone
        with pytest.raises(
            Refused, match="holds 1 CUSTOM_VRAM_8192MB, 1 VCPU, and a live migration keeps the devi"
        ):
            pair.on_b.begin_move("live_migrate", vram(number), consumer=claim.consumer)


def test_one_thing_is_asked_for_where_alternatives_have_no_meaning(pair: Pair) -> None:
    asked = {"consumer": str(uuid4()), **BY_GROUPS}
    for ask in (pair.on_a.capacity, pair.on_a.defrag):
        with pytest.raises(InvalidRequest, match="one thing is asked for here"):
            ask(asked)
        with pytest.raises(
            InvalidRequest, match="CUSTOM_VRAM_MB: one thing is asked for here; name the class"
        ):
            ask({"consumer": str(uuid4()), **vram(3000)})
    xml = "<domain type='kvm'><name>vm</name><memory unit='MiB'>64</memory><vcpu>1</vcpu></domain>"
    with pytest.raises(InvalidRequest, match="one thing is asked for here"):
        pair.on_a.claim_domain(xml, {"alternatives": [{"groups": [{"resources": {L40S: 1}}]}]})
    with pytest.raises(InvalidRequest, match="CUSTOM_VRAM_MB: one thing is asked for here"):
        pair.on_a.claim_domain(xml, {"groups": [{"suffix": "gpu", "resources": {"CUSTOM_VRAM_MB": 3000}}]})


def test_the_same_claim_at_once_gets_the_same_answer_though_another_alternative_fits_by_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(pair.a, l40s=4)
    operations = pair.a.world.operations
    request = parse_claim({"consumer": str(uuid4()), "flavor": FLAVOR})
    claim_one, beside = operations.tracker.claim, list[ClaimHandle]()

    def claim(asked: ClaimRequest) -> ClaimHandle:
        try:
            return claim_one(asked)
        except DoesNotFit:
            if not beside:
                cards(pair.a, h100=1, l40s=4)
                beside.append(claim_one(asked))  # the other call, which finds room by now
            raise

    monkeypatch.setattr(operations.tracker, "claim", claim)
    assert operations.claim(request) == beside[0].claim
    assert operations.claim(request).request.alternative == 1


def test_another_claim_of_the_instance_is_no_alternative(pair: Pair) -> None:
    cards(pair.a, l40s=4)
    consumer = pair.on_a.claim(resources={"VCPU": 3}).consumer
    with pytest.raises(Conflict, match="claimed already, with another request"):
        pair.on_a.claim(BY_GROUPS, consumer=consumer)


def test_where_takes_the_alternatives_of_a_flavor(pair: Pair) -> None:
    cards(pair.a, h100=0)
    cards(pair.b, l40s=2)
    found = pair.on_a.where({"flavor": FLAVOR})
    assert found.verdict == "fits"
    assert "alternative 2 of 2" in found.sentence
    assert [place.host for place in found.places] == ["node2"]
    cards(pair.b, l40s=1)
    none = pair.on_a.where({"flavor": FLAVOR})
    assert "none of 2 alternatives fits" in none.sentence
    assert f"resources:{H100}=1" in str(none.nearest)


def held_on(host: GatedHost) -> dict[str, Any]:
    """{consumer: what Placement says that it holds} of the host's claims."""
    client = host.world.operations.client
    return {each: client.allocations_of(each) for each in host.world.operations.tracker.claims()}


@pytest.mark.parametrize("seed", range(6))
def test_the_first_that_fits_by_brute_force_is_taken_and_nothing_else_changes(
    tmp_path: Path, seed: int
) -> None:
    """Brute force: each alternative is claimed alone, for an instance of its own, and released again."""
    dice = random.Random(seed)
    taken, refused = set(), 0
    with gated(tmp_path / "a") as host:
        cards(host, h100=dice.randint(0, 3), l40s=dice.randint(0, 6))
        operations = host.world.operations
        consumers: list[str] = []

        def asked(consumer: str) -> ClaimRequest:
            classes = dice.sample([H100, L40S, "VCPU", "MEMORY_MB"], dice.randint(1, 3))
            amounts = {name: dice.choice((1, 2, 3, 5, 900 if name == "MEMORY_MB" else 4)) for name in classes}
            suffix = dice.choice(("", "_x"))
            if suffix and len(classes) > 1:
                one, *rest = classes
                groups = [RequestGroup(suffix, {one: amounts[one]})]
                groups.append(RequestGroup("", {name: amounts[name] for name in rest}))
            else:
                groups = [RequestGroup("", amounts)]
            return ClaimRequest(consumer, tuple(groups))

        for _ in range(12):
            consumer = str(uuid4())
            options = [asked(consumer) for _ in range(dice.randint(2, 4))]
            first = None
            for number, option in enumerate(options, 1):
                alone = replace(option, consumer=str(uuid4()))
                try:
                    operations.claim(alone)
                except DoesNotFit:
                    continue
                first = number if first is None else first
                operations.release(alone.consumer)
            before = held_on(host)
            try:
                claim = operations.claim(with_others(options))
            except DoesNotFit as error:
                assert first is None, error.message
                assert held_on(host) == before
                refused += 1
            else:
                assert claim.request.alternative == first
                assert claim.request == options[claim.request.alternative - 1]
                after = held_on(host)
                assert after.pop(consumer).allocations == claim.allocations
                assert after == before
                consumers.append(consumer)
                taken.add(first)
            if consumers and dice.random() < 0.3:
                operations.release(consumers.pop(dice.randrange(len(consumers))))
        assert taken, "a seed in which something fits"
        assert refused < 12
