"""The values of the package: the fields of openapi.json, and what an answer of another version becomes."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from kits.paths import CHECKOUT

import plimsoll
from plimsoll import shapes
from plimsoll.values import claim_body, decode, encode, url

SCHEMAS = json.loads((CHECKOUT / "agent/api/openapi.json").read_text())["components"]["schemas"]
WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
OBJECTS = sorted(name for name, schema in SCHEMAS.items() if "properties" in schema)


def agrees(kind: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the type has exactly the values of the schema."""
    origin, arguments = get_origin(kind), get_args(kind)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return kind is getattr(shapes, name, None) if name in OBJECTS else agrees(kind, SCHEMAS[name])
    if "oneOf" in schema:
        choices = schema["oneOf"]
        if any("oneOf" in SCHEMAS.get(one.get("$ref", "").rpartition("/")[2], {}) for one in choices):
            choices = [
                *SCHEMAS["ClaimBody"]["oneOf"],
                *(one for one in choices if "ClaimBody" not in str(one)),
            ]
        return origin is UnionType and all(any(agrees(a, one) for a in arguments) for one in choices)
    if isinstance(schema.get("type"), list):
        words = {"string" if one is datetime else WORDS[one] for one in arguments}
        return origin is UnionType and words == set(schema["type"])
    if schema.get("type") == "array":
        return origin is tuple and arguments[1] is ... and agrees(arguments[0], schema["items"])
    if schema.get("type") == "object":
        return origin is Mapping and agrees(arguments[1], schema.get("additionalProperties") or {})
    if schema.get("format") == "date-time":
        return kind is datetime
    return kind is Any if "type" not in schema else WORDS.get(kind) == schema["type"]


@pytest.mark.parametrize("name", OBJECTS)
def test_a_value_has_the_fields_of_its_schema(name: str) -> None:
    kind, schema = getattr(shapes, name), SCHEMAS[name]
    assert is_dataclass(kind) and kind.__dataclass_params__.frozen
    hints = get_type_hints(kind)
    assert [field.name.removesuffix("_") for field in fields(kind)] == list(schema["properties"])
    for field in fields(kind):
        form = schema["properties"][field.name.removesuffix("_")]
        hint = hints[field.name]
        if field.default is MISSING:
            assert field.name.removesuffix("_") in schema["required"]
            assert agrees(hint, form), (field.name, hint)
        else:
            assert field.name not in schema["required"] and field.default is None
            given = [one for one in get_args(hint) if one is not NoneType]
            nullable = "null" in (form.get("type") or ())
            assert NoneType in get_args(hint)
            assert agrees(hint if nullable or len(given) > 1 else given[0], form), (field.name, hint)


def test_a_scalar_has_no_class_of_its_own() -> None:
    assert [name for name, schema in SCHEMAS.items() if not hasattr(shapes, name)] == ["State"]


RELEASED = {"consumer": "c", "released": True}


def test_a_field_that_the_client_does_not_know_is_ignored() -> None:
    assert decode(shapes.Released, RELEASED | {"when": "tomorrow"}) == shapes.Released(**RELEASED)


def test_a_missing_field_names_itself_and_both_versions() -> None:
    with pytest.raises(plimsoll.Incompatible) as caught:
        decode(shapes.Released, {"consumer": "c"}, "9.9.9")
    assert caught.value.field == "Released.released" and isinstance(caught.value, plimsoll.BadAnswer)
    assert str(caught.value) == (
        "The agent's answer lacks Released.released: the agent is of version 9.9.9, and this client of "
        f"version {plimsoll.__version__}; install those of one version."
    )


def test_a_missing_field_within_another() -> None:
    guest = {"state": "running"}
    with pytest.raises(
        plimsoll.Incompatible, match=r"Instances.instances\[0\].uuid: the agent is of version unk"
    ):
        decode(shapes.Instances, {"instances": [{"guest": guest}]})


@pytest.mark.parametrize(
    "answer", [{"consumer": 1, "released": True}, {"consumer": "c", "released": "yes"}, [], None, "text"]
)
def test_another_type_is_no_answer_of_an_agent(answer: Any) -> None:
    with pytest.raises(plimsoll.BadAnswer, match="Released"):
        decode(shapes.Released, answer)


def test_a_whole_number_may_stand_for_a_fraction_and_a_text_for_no_moment() -> None:
    at = "2026-11-21T10:00:00.125Z"
    record = {"at": at, "sentence": "", "duration_ms": 3}
    parsed = decode(shapes.LastPass, record)
    assert parsed.at == datetime.fromisoformat(at) and encode(parsed)["duration_ms"] == 3
    with pytest.raises(plimsoll.BadAnswer, match=r"LastPass\.at"):
        decode(shapes.LastPass, record | {"at": "yesterday"})


def test_an_optional_field_is_left_out_and_a_nullable_one_is_sent() -> None:
    group = shapes.Group(resources={"PGPU": 1}, required=("CUSTOM_A",))
    asked = shapes.ClaimByGroups(groups=(group,), name="web1")
    assert encode(asked) == {
        "groups": [{"resources": {"PGPU": 1}, "required": ["CUSTOM_A"]}],
        "name": "web1",
    }
    assert encode(shapes.HealthCheck(ok=True, reason=None)) == {"ok": True, "reason": None}


def test_a_word_of_python_has_an_underscore() -> None:
    names = {"consumer": "c", "name": "", "resource_class": "VGPU", "amount": 1, "becomes": "VGPU"}
    ends = {"from": "a", "from_uuid": "1", "to": "b", "to_uuid": "2"}
    relocation = decode(shapes.Relocation, names | ends)
    assert relocation.from_ == "a" and encode(relocation) == names | ends


def test_resources_are_a_group_without_a_suffix() -> None:
    more = {"groups": [{"suffix": "_gpu", "resources": {"PGPU": 1}}]}
    assert claim_body(more, {"VCPU": 2}, "c", "n") == {
        "groups": [{"resources": {"VCPU": 2}}, *more["groups"]],
        "consumer": "c",
        "name": "n",
    }


def test_paths_are_quoted() -> None:
    assert url("/v1/claims/{}", "a/b", force=True) == "/v1/claims/a%2Fb?force=true"
    assert url("/v1/moves", look=False, limit=None) == "/v1/moves"


def test_only_a_call_that_claims_answers_a_context() -> None:
    claim = object.__new__(shapes.Claim)
    with pytest.raises(TypeError, match="shown"), claim:
        pass
