"""Placement's API in the embedded core, at any microversion; what to ask is OpenStack Placement's word."""

import copy
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from placement.schemas import (
    aggregate,
    allocation,
    allocation_candidate,
    inventory,
    reshaper,
    resource_class,
    resource_provider,
    trait,
    usage,
)

from agent.placement.embedded.core import ROUTES, Core
from agent.placement.embedded.serve import WsgiApplication

LATEST = 39
PROVIDERS_MAX = 60
ROOT = "11111111-1111-4111-8111-111111111111"
CHILD = "22222222-2222-4222-8222-222222222222"

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/resource_classes"): resource_class.POST_RC_SCHEMA_V1_2,
    ("POST", "/resource_providers"): resource_provider.POST_RP_SCHEMA_V1_14,
    ("PUT", "/resource_providers/{uuid}"): resource_provider.PUT_RP_SCHEMA_V1_14,
    ("POST", "/resource_providers/{uuid}/inventories"): inventory.POST_INVENTORY_SCHEMA,
    ("PUT", "/resource_providers/{uuid}/inventories"): inventory.PUT_INVENTORY_SCHEMA,
    (
        "PUT",
        "/resource_providers/{uuid}/inventories/{resource_class}",
    ): inventory.PUT_INVENTORY_RECORD_SCHEMA,
    ("PUT", "/resource_providers/{uuid}/aggregates"): aggregate.PUT_AGGREGATES_SCHEMA_V1_19,
    ("PUT", "/resource_providers/{uuid}/traits"): trait.SET_TRAITS_FOR_RP_SCHEMA,
    ("POST", "/allocations"): allocation.POST_ALLOCATIONS_V1_38,
    ("PUT", "/allocations/{consumer_uuid}"): allocation.ALLOCATION_SCHEMA_V1_38,
    ("POST", "/reshaper"): reshaper.POST_RESHAPER_SCHEMA_V1_38,
}
QUERIES: dict[tuple[str, str], dict[str, Any]] = {
    ("GET", "/resource_providers"): resource_provider.GET_RPS_SCHEMA_1_18,
    ("GET", "/allocation_candidates"): allocation_candidate.GET_SCHEMA_1_36,
    ("GET", "/traits"): trait.LIST_TRAIT_SCHEMA,
    ("GET", "/usages"): usage.GET_USAGES_SCHEMA_V1_38,
}


class PlacementApi:
    """A core with two providers and a consumer at first; a new one now and then, so that it stays small."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._random = random.Random(1)
        self._cores = 0
        self.document = _document()
        self._open()

    def _open(self) -> None:
        self._cores += 1
        directory = self._directory / str(self._cores)
        directory.mkdir()
        self._core = Core.open(directory)
        self._door = WsgiApplication(self._core)
        for name, parent in ((ROOT, None), (CHILD, ROOT)):
            self._write(
                "POST", "/resource_providers", {"uuid": name, "name": name, "parent_provider_uuid": parent}
            )
            self._write(
                "PUT",
                f"/resource_providers/{name}/inventories",
                {
                    "resource_provider_generation": 0,
                    "inventories": {"VCPU": {"total": 64}, "VGPU": {"total": 8}},
                },
            )

    def _write(self, method: str, path: str, body: Any) -> None:
        answer = self._core.request(method, path, body, microversion="1.39")
        assert answer.status < 300, answer

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return self._door(environ, start_response)

    def headers(self) -> dict[str, str]:
        minor = LATEST if self._random.random() < 0.6 else self._random.randint(0, LATEST)
        return {"X-Auth-Token": "admin", "OpenStack-API-Version": f"placement 1.{minor}"}

    def state(self) -> object:
        model = self._core._store.model
        return dict(model.providers), dict(model.consumers), dict(model.traits), dict(model.resource_classes)

    def freshen(self, case: Any) -> None:
        model = self._core._store.model
        if len(model.providers) > PROVIDERS_MAX or not model.providers:
            self._core.close()
            self._open()
            model = self._core._store.model
        known = {"uuid": [*model.providers], "consumer_uuid": [*model.consumers]}
        for name, uuids in known.items():
            if name in (case.path_parameters or {}) and uuids and self._random.random() < 0.7:
                case.path_parameters[name] = self._random.choice(uuids)
        if isinstance(case.body, dict) and self._random.random() < 0.7:
            self._aim(case.body, model)

    def _aim(self, body: dict[str, Any], model: Any) -> None:
        """Generations that are right, and providers that are there, wherever a body names some."""
        provider = self._random.choice([*model.providers.values()])
        for key, value in list(body.items()):
            if key == "resource_provider_generation" and isinstance(value, int):
                body[key] = provider.generation
            elif key == "consumer_generation":
                body[key] = None
            elif key in ("allocations", "inventories") and isinstance(value, dict) and value:
                body[key] = {provider.uuid if _is_uuid(name) else name: each for name, each in value.items()}
            if isinstance(body[key], dict):
                self._aim(body[key], model)

    def close(self) -> None:
        self._core.close()


def _is_uuid(name: str) -> bool:
    return len(name) == len(ROOT) and name.count("-") == ROOT.count("-")


def _document() -> dict[str, Any]:
    """OpenAPI of Placement's API, as far as it takes anything."""
    paths: dict[str, dict[str, Any]] = {}
    for path, methods in ROUTES.items():
        names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
        in_path = [{"name": name, "in": "path", "required": True, "schema": _of(name)} for name in names]
        for method in methods:
            query = QUERIES.get((method, path), {}).get("properties", {})
            operation: dict[str, Any] = {
                "parameters": [
                    *in_path,
                    *({"name": name, "in": "query", "schema": _plain(each)} for name, each in query.items()),
                ],
                "responses": {"default": {"description": "an answer"}},
            }
            body = BODIES.get((method, path))
            if body is not None:
                operation["requestBody"] = {
                    "required": True,
                    "content": {"application/json": {"schema": _plain(body)}},
                }
            paths.setdefault(path, {})[method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "Placement", "version": "1.39"}, "paths": paths}


def _of(name: str) -> dict[str, Any]:
    if name in ("uuid", "consumer_uuid"):
        return {"type": "string", "format": "uuid"}
    return {"enum": ["VCPU", "VGPU", "CUSTOM_A", "HW_CPU_X86_AVX2", "CUSTOM_", "vcpu"]}


def _plain(schema: Any) -> Any:
    """Without the formats and patterns of Python's own dialect that no generator knows."""
    if isinstance(schema, dict):
        return {name: _plain(each) for name, each in schema.items() if name != "format" or each == "uuid"}
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    return copy.copy(schema)
