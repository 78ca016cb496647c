"""A token that is bound to a host: each route and each kind of write, any program of writes, and any body."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.embedded_api import Api, claim, new
from kits.examples import examples

from agent.errors import ApplyError
from agent.placement import transfer
from agent.placement.embedded import Core, CoreResponse
from agent.placement.embedded.core import ROUTES
from agent.placement.embedded.rules import BARRED_TYPE, Binding
from agent.placement.embedded.serve import ROLES, TokenUser, authorize
from agent.placement.snapshot import PlacementSnapshot, differences
from agent.placement.transport import Reply

A, B, POOL = (f"{number:08}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for number in (1, 2, 3))
"""Two hosts, and a pool that shares its disk."""
A_CARD, B_CARD = (f"{number:08}-cccc-4ccc-8ccc-cccccccccccc" for number in (1, 2))
ON_A, ON_B, MIGRATION, LEFT, ABSENT = (f"{number:08}-1111-4111-8111-111111111111" for number in range(1, 6))
SHARES = "MISC_SHARES_VIA_AGGREGATE"


class BoundApi(Api):
    """The requests of one token."""

    def __init__(self, core: Core, host: str | None, roles: frozenset[str] = frozenset({"service"})) -> None:
        super().__init__(core)
        self.host, self.roles = host, roles

    def ask(self, method: str, path: str, body: Any = None, mv: str = "1.39") -> CoreResponse:
        caller = TokenUser("agent", None, self.roles, self.host)
        binding = Binding("agent", self.host) if self.host else None

        def admit() -> None:
            authorize(caller, method, *path.partition("?")[::2])

        return self.core.request(method, path, body, microversion=mv, admit=admit, binding=binding)


def fleet(core: Core) -> Api:
    """Two hosts with a card each, the pool; on each host an instance, and the migration of another one."""
    api = Api(core)
    for uuid, name, parent in (
        (A, "a", None),
        (A_CARD, "a_card", A),
        (B, "b", None),
        (B_CARD, "b_card", B),
        (POOL, "pool", None),
    ):
        api.done("POST", "/resource_providers", {"name": name, "uuid": uuid, "parent_provider_uuid": parent})
        api.set_inventories(uuid, {"DISK_GB" if uuid == POOL else "VCPU": {"total": 100}})
    api.set_traits(POOL, SHARES)
    api.done("PUT", "/traits/CUSTOM_OLD")
    api.done("PUT", "/resource_classes/CUSTOM_OLD")
    api.done("PUT", f"/allocations/{ON_A}", claim({A: {"VCPU": 4}, POOL: {"DISK_GB": 5}}))
    api.done("PUT", f"/allocations/{ON_B}", claim({B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}))
    api.done("PUT", f"/allocations/{MIGRATION}", claim({B: {"VCPU": 2}}, consumer_type="MIGRATION"))
    api.done("PUT", f"/allocations/{LEFT}", claim({A: {"VCPU": 2}}, consumer_type="MIGRATION"))
    return api


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core.open(tmp_path)
    yield core
    core.close()


class Case(NamedTuple):
    """A request, and whether the token of host A may send it."""

    path: str
    body: Any
    may: bool
    mv: str = "1.39"


def inventories(uuid: str, api: Api, total: int = 50) -> dict[str, Any]:
    return {"resource_provider_generation": api.generation(uuid), "inventories": {"VCPU": {"total": total}}}


def contents(uuid: str, api: Api, **more: Any) -> dict[str, Any]:
    return {"resource_provider_generation": api.generation(uuid), **more}


def reshape_of(uuid: str, api: Api, consumers: Mapping[str, Any]) -> dict[str, Any]:
    return {"inventories": {uuid: inventories(uuid, api)}, "allocations": dict(consumers)}


def on_each(route: str, bodies: Any, a: str = A, b: str = B, **more: Any) -> list[Case]:
    """The same request for a provider of the tree and for one of another's."""
    return [
        Case(route.replace("{uuid}", uuid), bodies(uuid), may, **more)
        for uuid, may in ((a, True), (b, False))
    ]


def cases(method: str, route: str, api: Api) -> list[Case]:
    """Requests by which host A's token writes its own, and by which it writes others'. KeyError: add them."""
    table: dict[tuple[str, str], Any] = {
        ("POST", "/resource_classes"): lambda: [Case(route, {"name": "CUSTOM_NEW"}, True)],
        ("PUT", "/resource_classes/{name}"): lambda: [
            Case("/resource_classes/CUSTOM_NEW", None, True),
            Case("/resource_classes/CUSTOM_OLD", {"name": "CUSTOM_B"}, False, mv="1.6"),
        ],
        ("DELETE", "/resource_classes/{name}"): lambda: [Case("/resource_classes/CUSTOM_OLD", None, False)],
        ("POST", "/resource_providers"): lambda: [
            Case(route, {"name": "a_new", "parent_provider_uuid": A_CARD}, True),
            Case(route, {"name": "b_new", "parent_provider_uuid": B_CARD}, False),
            Case(route, {"name": "c"}, False),
        ],
        ("DELETE", "/resource_providers/{uuid}"): lambda: on_each(route, lambda _: None, A_CARD, B_CARD),
        ("PUT", "/resource_providers/{uuid}"): lambda: [
            Case(f"/resource_providers/{A_CARD}", {"name": "a_x", "parent_provider_uuid": A}, True),
            Case(f"/resource_providers/{B_CARD}", {"name": "b_x", "parent_provider_uuid": B}, False),
            Case(f"/resource_providers/{A_CARD}", {"name": "a_card", "parent_provider_uuid": B}, False),
            Case(f"/resource_providers/{B_CARD}", {"name": "b_card", "parent_provider_uuid": A}, False),
            Case(f"/resource_providers/{A_CARD}", {"name": "a_card", "parent_provider_uuid": None}, False),
        ],
        ("PUT", "/hosts/{uuid}/note"): lambda: on_each(
            route, lambda _: {"state": "ready", "version": "0.1.0"}
        ),
        ("POST", "/resource_providers/{uuid}/inventories"): lambda: on_each(
            route, lambda _: {"resource_class": "PCPU", "total": 1}
        ),
        ("PUT", "/resource_providers/{uuid}/inventories"): lambda: on_each(
            route, lambda uuid: inventories(uuid, api)
        ),
        ("DELETE", "/resource_providers/{uuid}/inventories"): lambda: on_each(
            route, lambda _: None, A_CARD, B_CARD
        ),
        ("PUT", "/resource_providers/{uuid}/inventories/{resource_class}"): lambda: on_each(
            "/resource_providers/{uuid}/inventories/VCPU", lambda uuid: contents(uuid, api, total=50)
        ),
        ("DELETE", "/resource_providers/{uuid}/inventories/{resource_class}"): lambda: on_each(
            "/resource_providers/{uuid}/inventories/VCPU", lambda _: None, A_CARD, B_CARD
        ),
        ("PUT", "/resource_providers/{uuid}/aggregates"): lambda: [
            *on_each(route, lambda uuid: contents(uuid, api, aggregates=[POOL])),
            *on_each(route, lambda uuid: contents(uuid, api, aggregates=[]), b=POOL),
            *on_each(route, lambda _: [POOL], mv="1.18"),
        ],
        ("PUT", "/resource_providers/{uuid}/traits"): lambda: on_each(
            route, lambda uuid: contents(uuid, api, traits=["CUSTOM_OLD"])
        ),
        ("DELETE", "/resource_providers/{uuid}/traits"): lambda: on_each(
            route, lambda uuid: (api.set_traits(uuid, "CUSTOM_OLD"), None)[1]
        ),
        ("PUT", "/traits/{name}"): lambda: [Case("/traits/CUSTOM_NEW", None, True)],
        ("DELETE", "/traits/{name}"): lambda: [Case("/traits/CUSTOM_OLD", None, False)],
        ("PUT", "/allocations/{consumer_uuid}"): lambda: [
            Case(f"/allocations/{ABSENT}", claim({A: {"VCPU": 1}, POOL: {"DISK_GB": 1}}), True),
            Case(f"/allocations/{ON_A}", claim({A_CARD: {"VCPU": 9}}, 1), True),
            Case(f"/allocations/{ON_A}", claim({}, 1), True),
            Case(f"/allocations/{MIGRATION}", claim({}, 1), True),
            Case(f"/allocations/{ABSENT}", claim({}, consumer_type=BARRED_TYPE), True),
            Case(f"/allocations/{ON_B}", claim({B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, 1), True),
            Case(f"/allocations/{ABSENT}", claim({B: {"VCPU": 1}}), False),
            Case(f"/allocations/{ABSENT}", claim({A: {"VCPU": 1}, B: {"VCPU": 1}}), False),
            Case(f"/allocations/{ABSENT}", claim({POOL: {"DISK_GB": 1}}), False),
            Case(f"/allocations/{ON_A}", claim({POOL: {"DISK_GB": 5}}, 1), False),
            Case(f"/allocations/{ON_B}", claim({B: {"VCPU": 1}}, 1), False),
            Case(
                f"/allocations/{ON_B}", claim({B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, 1, user_id="x"), False
            ),
            Case(f"/allocations/{ON_B}", claim({A: {"VCPU": 4}}, 1), False),
            Case(f"/allocations/{ON_B}", claim({}, 1), False),
            Case(f"/allocations/{MIGRATION}", claim({B: {"VCPU": 1}}, 1), False),
        ],
        ("DELETE", "/allocations/{consumer_uuid}"): lambda: [
            Case(f"/allocations/{ON_A}", None, True),
            Case(f"/allocations/{MIGRATION}", None, True),
            Case(f"/allocations/{ON_B}", None, False),
        ],
        ("POST", "/allocations"): lambda: [
            Case(route, moved({A: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, {B: {"VCPU": 4}}), True),
            Case(route, moved({A: {"VCPU": 4}}, {B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}), True),
            Case(
                route,
                moved({A: {"VCPU": 4}, POOL: {"DISK_GB": 9}}, {B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}),
                True,
            ),
            Case(route, moved({A: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, {B: {"VCPU": 3}}), False),
            Case(route, moved({A: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, {B: {"VCPU": 5}}), False),
            Case(route, moved({}, {B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}), False),
            Case(route, {ON_B: claim({A: {"VCPU": 2}}, 1), LEFT: claim({}, 1)}, True),
            Case(route, {ON_A: claim({B: {"VCPU": 2}}, 1), MIGRATION: claim({}, 1)}, True),
            Case(route, {ON_A: claim({B: {"VCPU": 3}}, 1), MIGRATION: claim({}, 1)}, False),
            Case(route, {ABSENT: claim({A: {"VCPU": 1}}), ON_B: claim({}, 1)}, False),
            *places(route),
        ],
        ("POST", "/reshaper"): lambda: [
            Case(route, reshape_of(A_CARD, api, {ON_A: claim({A_CARD: {"VCPU": 4}}, 1)}), True),
            Case(route, reshape_of(B_CARD, api, {}), False),
            Case(route, reshape_of(B, api, {ON_B: claim({B: {"VCPU": 4}, POOL: {"DISK_GB": 5}}, 1)}), False),
            Case(route, reshape_of(A, api, {ON_B: claim({B_CARD: {"VCPU": 4}}, 1)}), False),
            Case(route, reshape_of(A, api, moved(STAYS, {B: {"VCPU": 4}})), True),
            Case(route, reshape_of(A, api, moved(STAYS, {B: {"VCPU": 4}}, "INSTANCE")), False),
        ],
    }
    made: list[Case] = table[method, route]()
    return made


def moved(
    instance: Mapping[str, Any], migration: Mapping[str, Any], consumer_type: str = "MIGRATION"
) -> dict[str, Any]:
    """What begins a move of the instance on B at another host."""
    return {ON_B: claim(instance, 1), ABSENT: claim(migration, consumer_type=consumer_type)}


STAYS = {A: {"VCPU": 1}, POOL: {"DISK_GB": 5}}
"""What the instance on B has after a move to A that keeps its disk where it is."""


def places(route: str) -> list[Case]:
    """Who takes the place of the instance on B, which comes to A: its migration, and no other consumer."""
    place = {B: {"VCPU": 4}}
    halves = {uuid: claim({B: {"VCPU": 2}}, consumer_type="MIGRATION") for uuid in (ABSENT, new())}
    untyped = {uuid: {**one} for uuid, one in moved(STAYS, place).items()}
    for one in untyped.values():
        del one["consumer_type"]
    foreign = moved(STAYS, place)
    foreign[ABSENT] = claim(place, consumer_type="MIGRATION", project_id="x")
    return [
        Case(route, untyped, True, "1.37"),
        Case(route, moved(STAYS, place, "INSTANCE"), False),
        Case(route, moved(STAYS, place, "WHATEVER"), False),
        Case(route, foreign, False),
        Case(route, moved(STAYS, {**place, A: {"VCPU": 1}}), False),
        Case(route, moved(STAYS, {**place, POOL: {"DISK_GB": 1}}), False),
        Case(route, {ON_B: claim(STAYS, 1), **halves}, False),
        Case(route, {**moved(STAYS, place), new(): claim({POOL: {"DISK_GB": 1}})}, False),
        Case(route, {ON_B: claim(STAYS, 1), ON_A: claim(place, 1)}, False),
        Case(route, {ON_B: claim(STAYS, 1), ON_A: claim(place, 1, consumer_type="MIGRATION")}, False),
        Case(route, {new(): claim({A: {"VCPU": 1}, B: {"VCPU": 2}}), MIGRATION: claim({}, 1)}, False),
        Case(
            route,
            {new(): claim({POOL: {"DISK_GB": 5}}, consumer_type="MIGRATION"), ON_A: claim(STAYS, 1)},
            False,
        ),
    ]


REQUESTS = [(method, route) for route, methods in ROUTES.items() for method in methods]


@pytest.mark.parametrize("host", [A, "a"])
@pytest.mark.parametrize(("method", "route"), [one for one in REQUESTS if one[0] != "GET"])
def test_a_bound_token_writes_what_is_of_its_host_and_nothing_else(
    tmp_path: Path, method: str, route: str, host: str
) -> None:
    number = 0
    while True:
        core = Core.open(tmp_path / str(number))
        api, bound = fleet(core), BoundApi(core, host)
        case = [*cases(method, route, api), None][number]
        number += 1
        if case is None:
            core.close()
            break
        if case.may:
            answer = bound.ask(method, case.path, case.body, case.mv)
            assert answer.status < 300, (case, answer.body)
        else:
            error = bound.refused(403, method, case.path, case.body, case.mv)
            assert error["detail"].startswith(f"The token agent is bound to the host {host} and may not ")
            granted = api.ask(method, case.path, case.body, case.mv)
            assert granted.status < 300, (case, granted.body)  # so it was the binding that refused
        core.close()


@pytest.mark.parametrize(("method", "route"), REQUESTS)
def test_each_role_has_a_verdict_on_each_route(core: Core, method: str, route: str) -> None:
    path = route
    for name in ("name", "uuid", "resource_class", "consumer_uuid"):
        path = path.replace(f"{{{name}}}", ABSENT)
    for role in ROLES:
        allowed = role == "service" or (role == "admin" and route != "/reshaper") or method == "GET"
        answer = BoundApi(core, None, frozenset({role})).ask(method, path, {})
        assert (answer.status != 403) == allowed, (role, answer.body)
    if method == "GET":
        fleet(core)
        assert BoundApi(core, A).ask(method, path.replace(ABSENT, B)).status != 403


def test_the_refusal_names_the_token_the_host_and_what_is_anothers(core: Core) -> None:
    fleet(core)
    bound = BoundApi(core, "a")

    def said(method: str, path: str, body: Any = None, mv: str = "1.39") -> str:
        return str(bound.refused(403, method, path, body, mv)["detail"])

    start = "The token agent is bound to the host a and may not "
    assert said("PUT", f"/allocations/{ON_B}", claim({}, 1)) == (
        f"{start}write consumer {ON_B}, which has nothing on that host."
    )
    assert said("PUT", f"/allocations/{ABSENT}", claim({B: {"VCPU": 1}})) == (
        f"{start}write consumer {ABSENT}, which gets nothing on that host."
    )
    assert said("PUT", f"/allocations/{ABSENT}", claim({A: {"VCPU": 1}, B: {"VCPU": 2}})) == (
        f"{start}allocate 2 of VCPU on resource provider {B} (b), which is another's."
    )
    assert said("PUT", f"/allocations/{ON_B}", claim({A: {"VCPU": 1}, POOL: {"DISK_GB": 5}}, 1)) == (
        f"{start}free 4 of VCPU on resource provider {B} (b), which is another's."
    )
    assert said("PUT", f"/allocations/{ON_A}", claim({POOL: {"DISK_GB": 5}}, 1)) == (
        f"{start}leave consumer {ON_A} with nothing but sharing providers: remove all that it has."
    )
    assert said("POST", "/allocations", moved(STAYS, {B: {"VCPU": 4}}, "INSTANCE")) == (
        f"{start}make consumer {ABSENT}, which is no migration of an instance that comes to that host."
    )
    assert said("POST", "/allocations", {ON_B: claim(STAYS, 1), ON_A: claim({B: {"VCPU": 4}}, 1)}) == (
        f"{start}allocate 4 of VCPU on resource provider {B} (b), which is another's."
    )
    assert said("PUT", f"/resource_providers/{POOL}", {"name": "x"}) == (
        f"{start}write resource provider {POOL} (pool), which is another's."
    )
    assert said("DELETE", "/traits/CUSTOM_OLD") == f"{start}remove CUSTOM_OLD, which all hosts share."
    assert said("PUT", f"/resource_providers/{A}", {"name": "x"}) == (
        f"{start}rename it to 'x': bind it by its uuid for that."
    )


@pytest.mark.parametrize("host", ["c", ABSENT])
def test_a_host_that_is_not_there_may_only_be_made(core: Core, host: str) -> None:
    fleet(core)
    bound = BoundApi(core, host)
    advice = "no root provider has that name or uuid: create it first, or correct the token file."
    foreign = f"/resource_providers/{B}"
    assert bound.refused(403, "PUT", foreign, {"name": "c"})["detail"].endswith(advice)
    assert bound.refused(403, "PUT", f"/allocations/{ABSENT}", claim({B: {"VCPU": 1}}))
    body = {"name": "c", "uuid": ABSENT}
    bound.refused(403, "POST", "/resource_providers", {**body, "parent_provider_uuid": B})
    bound.refused(403, "POST", "/resource_providers", {"name": "d", "uuid": new()})
    bound.done("POST", "/resource_providers", body)
    bound.done("POST", "/resource_providers", {"name": "c_card", "parent_provider_uuid": ABSENT})
    bound.set_inventories(ABSENT, {"VCPU": {"total": 4}})
    bound.done("PUT", f"/allocations/{new()}", claim({ABSENT: {"VCPU": 1}}))
    bound.refused(403, "POST", "/resource_providers", {"name": "e"})


def test_a_provider_that_is_no_root_is_nobodys_host(core: Core) -> None:
    fleet(core)
    for host in (B_CARD, "b_card"):
        bound = BoundApi(core, host)
        for parent in (None, B):
            body = {"name": "b_card", "parent_provider_uuid": parent}
            bound.refused(403, "PUT", f"/resource_providers/{B_CARD}", body)
        bound.refused(403, "POST", "/resource_providers", {"name": "x", "parent_provider_uuid": B_CARD})


def test_another_callers_key_gives_a_bound_token_nothing(core: Core) -> None:
    fleet(core)
    write = ("PUT", f"/allocations/{ON_B}", claim({}, 1))
    refused = core.request(*write, microversion="1.39", key="k", binding=Binding("agent", A))
    again = core.request(*write, microversion="1.39", key="k")
    assert (refused.status, again.status) == (403, 422)


# Any program of writes, beside a model


def outside(api: Api) -> tuple[dict[str, Any], dict[str, Any], Counter[tuple[str, str]], set[str]]:
    """What is not A's: providers without generations, all consumers, what is used, and names."""
    model = api.core._store.model
    providers = {
        uuid: (one.name, one.parent_uuid, one.inventories, one.traits, one.aggregates)
        for uuid, one in model.providers.items()
        if one.root_uuid != A
    }
    consumers = {
        uuid: (one.project_id, one.user_id, one.consumer_type, one.allocations)
        for uuid, one in model.consumers.items()
        if one.allocations
    }
    used: Counter[tuple[str, str]] = Counter()
    for *_, allocations in consumers.values():
        for uuid, part in allocations.items():
            for name, amount in part.items():
                used[uuid, name] += amount
    return providers, consumers, used, {*model.traits, *model.resource_classes}


def check_nothing_foreign_changed(api: Api, before: Any, tree: set[str]) -> None:
    (providers, consumers, used, names), now = before, outside(api)
    assert now[0] == providers
    assert names <= now[3]
    changed = [uuid for uuid in {*consumers, *now[1]} if consumers.get(uuid) != now[1].get(uuid)]
    touching = [
        uuid for uuid in changed for part in (consumers, now[1]) if tree & {*part.get(uuid, [{}])[-1]}
    ]
    lent: Counter[tuple[str, str]] = Counter()
    reverts = any(
        consumers[uuid][2] == "MIGRATION" and uuid not in now[1] and tree & {*consumers[uuid][-1]}
        for uuid in changed
        if uuid in consumers
    )
    for uuid in changed:
        old, later = consumers.get(uuid), now[1].get(uuid)
        is_migration = old is not None and old[2] == "MIGRATION" and later is None
        assert uuid in touching or is_migration or (old is None and touching)
        if old is not None and (is_migration or reverts or tree & {*old[-1]}):
            for provider, part in old[-1].items():
                for name, amount in part.items():
                    lent[provider, name] += amount
    check_places(consumers, now[1], tree)
    for key in {*used, *now[2]}:
        if key[0] not in tree:
            assert now[2][key] <= used[key] or key[0] == POOL
            assert now[2][key] >= used[key] - lent[key]


def check_places(consumers: dict[str, Any], later: dict[str, Any], tree: set[str]) -> None:
    """Who gets something on another host is the migration of who came, or has the place of one that ended."""

    def place(of: dict[str, Any], uuid: str) -> dict[str, Any]:
        held = of[uuid][-1] if uuid in of else {}
        return {one: dict(part) for one, part in held.items() if one not in tree and one != POOL}

    for uuid in later:
        old, new = place(consumers, uuid), place(later, uuid)
        if all(n <= old.get(one, {}).get(name, 0) for one, part in new.items() for name, n in part.items()):
            continue
        if uuid in consumers:
            assert tree & {*consumers[uuid][-1]}
            assert any(one[2] == "MIGRATION" and other not in later for other, one in consumers.items())
        else:
            assert later[uuid][2] in ("MIGRATION", None)
            assert not tree & {*later[uuid][-1]}
            came = [one for one in later if tree & {*later[one][-1]} and place(consumers, one) == new]
            assert any(not place(later, one) for one in came)


HOLDERS = [ON_A, ON_B, MIGRATION, LEFT, ABSENT]
PROVIDERS = [A, A_CARD, B, B_CARD, POOL]
allocations = st.dictionaries(
    st.sampled_from(PROVIDERS),
    st.dictionaries(st.sampled_from(["VCPU", "DISK_GB"]), st.integers(1, 9), min_size=1, max_size=1),
    max_size=3,
)
types = st.sampled_from(["INSTANCE", "MIGRATION", BARRED_TYPE])
wanted = st.dictionaries(
    st.sampled_from(HOLDERS), st.tuples(st.one_of(allocations, st.none()), types), min_size=1, max_size=3
)
programs = st.lists(st.tuples(st.integers(0, 9), wanted, st.randoms(use_true_random=False)), max_size=8)


@settings(
    max_examples=examples(180), deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(programs)
def test_whatever_a_bound_token_writes_the_rest_stays(program: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory, closing(Core.open(Path(directory))) as core:
        api, bound = fleet(core), BoundApi(core, A)
        for kind, parts, draws in program:
            tree = {uuid for uuid, one in core._store.model.providers.items() if one.root_uuid == A}
            before, whole = outside(api), api.whole()
            request = drawn_request(kind, parts, draws, api)
            answer = bound.ask(*request)
            assert answer.status < 500, (request, answer.body)
            assert answer.status < 300 or api.whole() == whole
            tree |= {uuid for uuid, one in core._store.model.providers.items() if one.root_uuid == A}
            check_nothing_foreign_changed(api, before, tree)


def moved_by_chance(draws: random.Random, api: Api) -> dict[str, Any]:
    """A consumer goes to A or B, and another one gets the place that it had, or nearly that."""
    consumers = api.core._store.model.consumers
    held = [uuid for uuid in HOLDERS if uuid in consumers and consumers[uuid].allocations]
    if not held:
        return {ON_B: claim({B: {"VCPU": 4}})}
    instance = draws.choice(held)
    place: dict[str, Any] = {uuid: dict(part) for uuid, part in consumers[instance].allocations.items()}
    if draws.random() < 0.2:
        place[A] = {"VCPU": 1}
    other = draws.choice([uuid for uuid in HOLDERS if uuid != instance])
    parts = {instance: {draws.choice([A, A, B]): {"VCPU": 1}}, other: place}
    return {
        uuid: claim(
            part,
            consumers[uuid].generation if uuid in consumers else None,
            consumer_type=draws.choice(["INSTANCE", "MIGRATION"]),
        )
        for uuid, part in parts.items()
    }


def drawn_request(kind: int, parts: Any, draws: random.Random, api: Api) -> tuple[str, str, Any]:
    model = api.core._store.model
    bodies = {}
    for uuid, (drawn, consumer_type) in parts.items():
        old, other = model.consumer(uuid), model.consumer(draws.choice(HOLDERS))
        of_other = dict(other.allocations) if other else {}  # as in a move
        held = of_other if drawn is None else drawn
        bodies[uuid] = claim(held, old.generation if old else None, consumer_type=consumer_type)
    consumer, body = next(iter(bodies.items()))
    uuid = draws.choice([one for one in PROVIDERS if model.provider(one)])
    others = [None, *(one for one in PROVIDERS if model.provider(one))]
    if kind < 2:
        return "POST", "/allocations", moved_by_chance(draws, api)
    if kind < 4:
        return "POST", "/allocations", bodies
    if kind == 4:
        return "PUT", f"/allocations/{consumer}", body
    if kind == 5:
        return "DELETE", f"/allocations/{consumer}", None
    if kind == 6:
        return "POST", "/reshaper", reshape_of(uuid, api, bodies)
    if kind == 7:
        name = draws.choice(["a", "b", "a_card", "x"])
        return (
            "PUT",
            f"/resource_providers/{uuid}",
            {"name": name, "parent_provider_uuid": draws.choice(others)},
        )
    if kind == 8:
        return "DELETE", f"/resource_providers/{uuid}", None
    return (
        "PUT",
        f"/resource_providers/{uuid}/traits",
        contents(uuid, api, traits=draws.choice([[], [SHARES]])),
    )


# Any body

leaves = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    st.sampled_from([*PROVIDERS, *HOLDERS, "VCPU", "a", "b"]),
)
names = st.sampled_from(
    [
        *("allocations", "resources", "inventories", "VCPU", "consumer_generation", "project_id", "user_id"),
        *("name", "uuid", "parent_provider_uuid", "resource_provider_generation", "consumer_type", "total"),
        *(B, A, ON_B, ABSENT),
    ]
)
bodies = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)


@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([one for one in REQUESTS if one[0] != "GET"]),
            st.sampled_from([*PROVIDERS, *HOLDERS, "VCPU", "CUSTOM_OLD"]),
            bodies,
            st.sampled_from(["1.0", "1.6", "1.18", "1.27", "1.39"]),
        ),
        min_size=1,
        max_size=10,
    )
)
def test_no_body_gets_past_the_binding(kept: Api, requests: list[Any]) -> None:
    bound, model = BoundApi(kept.core, A), kept.core._store.model
    for (method, route), name, body, mv in requests:
        path = route
        for part in ("name", "uuid", "resource_class", "consumer_uuid"):
            path = path.replace(f"{{{part}}}", name)
        tree = {uuid for uuid, one in model.providers.items() if one.root_uuid == A}
        before = outside(kept)
        assert bound.ask(method, path, body, mv).status < 500
        tree |= {uuid for uuid, one in model.providers.items() if one.root_uuid == A}
        check_nothing_foreign_changed(kept, before, tree)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    core = Core.open(tmp_path_factory.mktemp("core"))
    yield fleet(core)
    core.close()


# `plimsoll placement import` with a bound token: a host that comes from elsewhere


class BoundTransport(NamedTuple):
    """The requests of one token, as of a client over HTTP."""

    api: BoundApi

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        answer = self.api.ask(method, path, body, mv=microversion)
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        pass


def carry(wanted: PlacementSnapshot, core: Core, host: str | None) -> None:
    """As `plimsoll placement import` does."""
    transport = BoundTransport(BoundApi(core, host))
    client = transfer.SnapshotClient(transport)
    present, evidence = transfer.read_counterpart(client, wanted)
    plan = transfer.plan_import(wanted, present, evidence.names)
    untyped = transfer.SnapshotClient(transport, microversion=transfer.UNTYPED_MICROVERSION)
    transfer.apply_import(client, untyped, plan)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[PlacementSnapshot]:
    """The host A with its card, a trait and a class of its own, and two instances."""
    with closing(Core.open(tmp_path / "elsewhere")) as core:
        api = Api(core)
        for uuid, name, parent in ((A, "a", None), (A_CARD, "a_card", A)):
            body = {"name": name, "uuid": uuid, "parent_provider_uuid": parent}
            api.done("POST", "/resource_providers", body)
        api.done("PUT", "/traits/CUSTOM_ITS_OWN")
        api.done("PUT", "/resource_classes/CUSTOM_ITS_OWN")
        api.set_inventories(A, {"VCPU": {"total": 8}})
        api.set_inventories(A_CARD, {"CUSTOM_ITS_OWN": {"total": 4}})
        api.set_traits(A_CARD, "CUSTOM_ITS_OWN")
        api.done("PUT", f"/allocations/{ON_A}", claim({A: {"VCPU": 4}, A_CARD: {"CUSTOM_ITS_OWN": 1}}))
        api.done("PUT", f"/allocations/{LEFT}", claim({A: {"VCPU": 2}}, consumer_type="MIGRATION"))
        content = transfer.read_service(transfer.SnapshotClient(BoundTransport(BoundApi(core, None))))[0]
    yield content


@pytest.mark.parametrize("host", [A, "a"])
def test_a_host_is_imported_with_its_own_token_and_twice_is_nothing(
    core: Core, elsewhere: PlacementSnapshot, host: str
) -> None:
    for _ in range(2):
        carry(elsewhere, core, host)
        client = transfer.SnapshotClient(BoundTransport(BoundApi(core, host)))
        present, _ = transfer.read_counterpart(client, elsewhere)
        assert not list(differences(elsewhere, present))


def test_another_hosts_token_imports_nothing_of_it(core: Core, elsewhere: PlacementSnapshot) -> None:
    api = Api(core)
    api.done("POST", "/resource_providers", {"name": "b", "uuid": B})
    before = api.whole()[:2]
    with pytest.raises(ApplyError, match="bound to the host"):
        carry(elsewhere, core, B)
    assert api.whole()[:2] == before, "providers and consumers"
