"""Nonsense of every kind: no answer is a 500, and what is refused changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.embedded_api import Api, claim
from kits.examples import examples

from agent.placement.embedded import Core
from agent.placement.embedded.core import ROUTES

HOST = "00000001-0000-0000-0000-000000000000"
CONSUMER = "00000001-1111-1111-1111-111111111111"

words = st.one_of(
    st.sampled_from(
        [
            "uuid",
            "name",
            "parent_provider_uuid",
            "resource_provider_generation",
            "inventories",
            "allocations",
            "resources",
            "resource_provider",
            "traits",
            "aggregates",
            "mappings",
            "consumer_generation",
            "consumer_type",
            "project_id",
            "user_id",
            "total",
            "reserved",
            "allocation_ratio",
            "max_unit",
            "resource_class",
            "VCPU",
            "CUSTOM_X",
            "HW_CPU_X86_AVX",
            HOST,
            CONSUMER,
            "INSTANCE",
        ]
    ),
    st.text(max_size=5),
)
numbers = st.one_of(st.integers(-2, 3), st.integers(), st.floats(), st.booleans())
leaves = st.one_of(st.none(), numbers, words)
bodies = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
mutations = st.lists(st.tuples(st.integers(0, 40), bodies), max_size=2)
parameters = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "name",
                "uuid",
                "member_of",
                "resources",
                "required",
                "in_tree",
                "project_id",
                "user_id",
                "consumer_type",
                "associated",
                "limit",
                "resources1",
                "group_policy",
                "root_required",
                "same_subtree",
                "x",
            ]
        ),
        st.one_of(
            words,
            st.sampled_from(["VCPU:1", "VCPU:-1", "in:", "!in:", f"!in:{HOST}", "in:A,!B", "!", ",", ":"]),
        ),
    ),
    max_size=3,
)
routes = st.sampled_from([(path, method) for path, methods in ROUTES.items() for method in methods])


def well_formed() -> list[Any]:
    """Bodies of which each is right for some route; the fuzzer then spoils them somewhere."""
    inventories = {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 4, "reserved": 1}}}
    held = claim({HOST: {"VCPU": 1}}, 1)
    return [
        {"name": "x", "uuid": CONSUMER, "parent_provider_uuid": HOST},
        inventories,
        {"resource_class": "VCPU", "total": 1},
        {"resource_provider_generation": 2, "total": 1},
        {"resource_provider_generation": 2, "traits": ["HW_CPU_X86_AVX"]},
        {"resource_provider_generation": 2, "aggregates": [HOST]},
        {"name": "CUSTOM_X"},
        held,
        {CONSUMER: held},
        {"inventories": {HOST: inventories}, "allocations": {CONSUMER: held}},
    ]


def spoiled(body: Any, place: int, junk: Any) -> Any:
    """`body` with the value at the `place`th position of its tree replaced."""
    position = -1

    def walk(value: Any) -> Any:
        nonlocal position
        position += 1
        if position == place:
            return junk
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    return walk(body)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    core = Core.open(Path(tmp_path_factory.mktemp("fuzz")))
    yield Api(core)
    core.close()


def furnish(api: Api) -> None:
    """See to it that there is a host with something on it, whatever the examples before have done."""
    if api.ask("GET", f"/resource_providers/{HOST}").status == 404:
        for shown in api.done("GET", "/resource_providers")["resource_providers"]:
            api.ask("DELETE", f"/resource_providers/{shown['uuid']}")
        api.done("POST", "/resource_providers", {"name": "host", "uuid": HOST})
    if not api.held(CONSUMER):
        api.set_inventories(HOST, {"VCPU": {"total": 8}})
        assert api.claim(CONSUMER, {HOST: {"VCPU": 2}}).status == 204


@settings(
    max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=routes,
    part=words,
    query=parameters,
    start=st.one_of(st.sampled_from(well_formed()), bodies),
    changes=mutations,
    minor=st.sampled_from([*range(40), 39, 39, 39]),
)
def test_nonsense_is_refused_and_changes_nothing(
    api: Api, route: tuple[str, str], part: str, query: Any, start: Any, changes: Any, minor: int
) -> None:
    pattern, method = route
    path = pattern.replace("{uuid}", HOST).replace("{consumer_uuid}", CONSUMER)
    for name in ("{name}", "{resource_class}"):
        path = path.replace(name, quote(part, safe=""))
    body = start
    for place, junk in changes:
        body = spoiled(body, place, junk)
    text = "&".join(f"{key}={quote(value)}" for key, value in query)
    furnish(api)
    before = api.whole()
    answer = api.ask(method, f"{path}?{text}" if text else path, body, mv=f"1.{minor}")
    assert answer.status < 500, answer
    assert answer.status < 300 or api.whole() == before
