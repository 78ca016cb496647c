"""The OpenAPI document of the local API, from its routes and shapes.

`./dev generate` writes it to `agent/api/openapi.json`, which the agent serves.
"""

import json
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from agent.api import routes
from agent.api.routes import ROUTES, ApiRoute
from agent.api.shapes.schema import ErrorShape, Named, Schema, Values

Json = dict[str, Any]

FILE = Path(routes.__file__).with_name("openapi.json")
SUFFIX = "Shape"
"""Of the names of shapes; the components of the document go without it."""

SCALARS: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}

INFO = {
    "title": "Plimsoll local API",
    "version": "1",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "description": (
        "HTTP on the agent's Unix socket. The kernel identifies the caller (SO_PEERCRED); the options "
        "readers, claimers and admins of [api] give each caller a role. x-plimsoll-role is the least role "
        "that an operation needs. A body has at most 1 MiB, is UTF-8 and comes with a Content-Length."
    ),
}


class Components:
    """The schemas of the document by name; the schema of a shape is added where the shape is first used."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}

    def schema(self, form: Any) -> Json:
        """The JSON Schema of a type: a scalar, shape, list, dictionary, union or annotated type."""
        origin, arguments = get_origin(form), get_args(form)
        if origin is Annotated:
            return self._annotated(arguments[0], form.__metadata__)
        if origin is NotRequired:
            return self.schema(arguments[0])
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return _union([self.schema(argument) for argument in arguments])
        if origin is list:
            return {"type": "array", "items": self.schema(arguments[0])}
        if origin is dict:
            values = self.schema(arguments[1])
            return {"type": "object"} | ({"additionalProperties": values} if values else {})
        if is_typeddict(form):
            return self._shape(form)
        return {} if form is Any else {"type": SCALARS[form]}

    def _annotated(self, form: Any, notes: Iterable[object]) -> Json:
        schema = self.schema(form)
        for note in notes:
            if isinstance(note, Named):
                described = {"description": note.description} if note.description else {}
                schema = self._component(note.name, schema | described)
            elif isinstance(note, Schema):
                schema = schema | note.keywords
            elif isinstance(note, Values):
                schema = schema | {"enum": note.read()}
            else:
                schema = schema | {"description": note}
        return schema

    def _shape(self, shape: Any) -> Json:
        name = shape.__name__.removesuffix(SUFFIX)
        hints = get_type_hints(shape, include_extras=True)
        schema = {
            "type": "object",
            "description": shape.__doc__,
            "properties": {key: self.schema(form) for key, form in hints.items()},
            "required": [key for key in hints if key in shape.__required_keys__],
            "additionalProperties": getattr(shape, "__extensible__", False),
        }
        return self._component(name, schema)

    def _component(self, name: str, schema: Json) -> Json:
        if self.schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two shapes have the name {name}")
        return {"$ref": f"#/components/schemas/{name}"}


def _union(schemas: list[Json]) -> Json:
    """One schema with several types where all are scalars, else `oneOf`."""
    kinds = [schema.get("type") for schema in schemas]
    if all(isinstance(kind, str) and kind not in ("array", "object") for kind in kinds):
        union: Json = {key: value for schema in schemas for key, value in schema.items()}
        union["type"] = kinds
        if "enum" in union:
            union["enum"] = [*union["enum"], None]
        return union
    return {"oneOf": schemas}


def generate_document() -> Json:
    """The document."""
    components = Components()
    error = {"application/json": {"schema": components.schema(ErrorShape)}}
    paths: dict[str, Json] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "http://localhost", "description": "the agent ignores the host name"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.schemas.items())),
            "responses": {
                "Error": {
                    "description": "Not done; nothing changed, unless the message says that it may have",
                    "content": error,
                }
            },
        },
    }


def _operation(route: ApiRoute, components: Components) -> Json:
    operation: Json = {
        "operationId": route.operation,
        "summary": route.summary,
        "x-plimsoll-role": route.role.name.lower(),
    }
    for name, form, description, required, place in route.parameters:
        described: Json = {"name": name, "in": place, "description": description}
        described |= {"required": True} if required else {}
        operation.setdefault("parameters", []).append(described | {"schema": components.schema(form)})
    if route.body is not None:
        content = {"application/json": {"schema": components.schema(route.body)}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = {}
    for status, result in route.results.items():
        response: Json = {
            "description": result.description,
            "content": {result.media_type: {"schema": components.schema(result.form)}},
        }
        if result.headers:
            response["headers"] = {
                name: {"schema": {"type": "string"}, "description": text}
                for name, text in result.headers.items()
            }
        operation["responses"][str(status)] = response
    operation["responses"]["default"] = {"$ref": "#/components/responses/Error"}
    return operation


def document_text() -> str:
    """The document as it is in `FILE`."""
    return json.dumps(generate_document(), indent=2, ensure_ascii=False) + "\n"
