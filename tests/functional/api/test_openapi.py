"""The OpenAPI document, the routes and the shapes say the same, and no body makes the agent stumble."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from kits.api_client import ask, check, resolve, serving, validate
from kits.examples import examples
from kits.status import sight, uuid_of
from samples import INSTANCES, TREE

from agent.api import shapes
from agent.api.routes import ROUTES, document

METHODS = ("get", "put", "post", "delete", "patch", "head", "options", "trace")


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with sight() as shown, serving(shown.world.operations, shown.directory / "s"):
        yield shown.directory / "s"


def operations() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method.upper(), template): operation
        for template, item in document()["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    }


def test_every_route_is_described_and_every_description_is_a_route() -> None:
    routes = {(route.method, route.rule.replace("<", "{").replace(">", "}")) for route in ROUTES}
    assert routes == set(operations())


def test_roles_parameters_and_bodies_are_described() -> None:
    for route in ROUTES:
        operation = operations()[route.method, route.rule.replace("<", "{").replace(">", "}")]
        assert operation["x-plimsoll-role"] == route.role.name.lower()
        parameters = operation.get("parameters", ())
        assert {each["name"] for each in parameters if each["in"] == "query"} == route.query
        assert ("requestBody" in operation) == route.has_body
        assert resolve(operation["responses"]["default"])["content"]


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for node in walk(document()):
        if "$ref" in node:
            assert resolve(node)
    names = [operation["operationId"] for operation in operations().values()]
    assert len(names) == len(set(names))


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=VALUES)
def test_any_json_gets_an_answer_that_is_described(path: Path, body: Any) -> None:
    reply = ask(path, "POST", "/v1/claims?dry_run=true", body)
    assert reply.status < 500
    check("POST", "/v1/claims", reply)


@settings(max_examples=examples(60), deadline=None)
@given(body=st.binary(max_size=64))
def test_any_bytes_get_an_answer_that_is_described(path: Path, body: bytes) -> None:
    reply = ask(path, "POST", "/v1/claims", body, {"Content-Type": "application/json"})
    assert 400 <= reply.status < 500
    check("POST", "/v1/claims", reply)


SOME = uuid_of("some")
NAMES = st.sampled_from(["VCPU", "VGPU", "MEMORY_MB", "CUSTOM_X"])
GROUPS = st.fixed_dictionaries(
    {"resources": st.dictionaries(NAMES, st.integers(0, 2**31), max_size=3)},
    optional={
        "suffix": st.sampled_from(["", "1", "_NET", "not a suffix"]),
        "required": st.lists(
            st.sampled_from(["HW_NUMA_ROOT", "!HW_NUMA_ROOT", "in:A,B", "", "in:"]), max_size=2
        ),
        "member_of": st.lists(st.sampled_from([SOME, "in:", "!x"]), max_size=1),
        "colour": st.just("blue"),
    },
)
FLAVORS = st.fixed_dictionaries(
    {"vcpus": st.integers(-1, 4), "memory_mb": st.integers(0, 4096)},
    optional={
        "disk_gb": st.integers(-1, 10),
        "extra_specs": st.dictionaries(
            st.sampled_from(
                ["resources:VGPU", "hw:cpu_policy", "hw:numa_nodes", "hw:mem_page_size", "trait:X", "hw:x"]
            ),
            st.sampled_from(["1", "0", "dedicated", "required", "2MB", "", "²"]),
            max_size=2,
        ),
    },
)
BODIES = st.fixed_dictionaries(
    {"consumer": st.sampled_from([SOME, SOME.upper(), "web1"])},
    optional={
        "groups": st.lists(GROUPS, max_size=3),
        "flavor": FLAVORS,
        "name": st.text(max_size=3),
        "group_policy": st.sampled_from(["none", "isolate", "never", None]),
    },
)


@settings(max_examples=examples(150), deadline=None)
@given(body=BODIES)
def test_what_the_agent_takes_is_what_the_document_allows(path: Path, body: dict[str, Any]) -> None:
    reply = ask(path, "POST", "/v1/claims?dry_run=true", body)
    assert reply.status in (200, 400)
    check("POST", "/v1/claims", reply)
    if reply.status == 200:
        validate({"$ref": "#/components/schemas/ClaimBody"}, body)


URLS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=20)


@settings(max_examples=examples(60), deadline=None)
@given(method=st.sampled_from(METHODS), url=URLS)
def test_any_url_gets_an_answer_of_the_one_shape(path: Path, method: str, url: str) -> None:
    reply = ask(path, method.upper(), f"/v1/{url}")
    assert reply.status < 500
    if reply.status >= 400 and method != "head":
        validate({"$ref": "#/components/schemas/Error"}, reply.body)


@pytest.mark.parametrize(
    ("component", "sample"),
    [("Instances", INSTANCES), ("Tree", TREE)],
    ids=("instances", "tree"),
)
def test_a_sample_is_valid(component: str, sample: object) -> None:
    validate({"$ref": f"#/components/schemas/{component}"}, sample)


def test_a_shape_that_no_route_uses_does_not_exist() -> None:
    classes = {
        line.removeprefix("class ").partition("Shape(")[0]
        for file in Path(shapes.__file__).parent.glob("*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.startswith("class ") and "Shape(" in line
    }
    assert classes == classes & set(document()["components"]["schemas"])
