"""What the tests of the embedded core share: a client that says in one line what it wants of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from agent.placement.embedded import Core, CoreResponse

UNDEFINED = "placement.undefined_code"
CONCURRENT = "placement.concurrent_update"

Resources = Mapping[str, Mapping[str, int]]


class Api:
    """Requests to one core, at 1.39 unless told otherwise."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def ask(self, method: str, path: str, body: Any = None, mv: str = "1.39") -> CoreResponse:
        return self.core.request(method, path, body, microversion=mv)

    def done(self, method: str, path: str, body: Any = None, mv: str = "1.39") -> Any:
        """The body of a request that must be granted."""
        answer = self.ask(method, path, body, mv)
        assert answer.status < 300, (method, path, answer.status, answer.body)
        return answer.body

    def refused(
        self, status: int, method: str, path: str, body: Any = None, mv: str = "1.39", code: str = UNDEFINED
    ) -> dict[str, Any]:
        """The error of a request that must be refused so, and that changed nothing."""
        before = self.whole()
        answer = self.ask(method, path, body, mv)
        assert answer.status == status, (method, path, answer.status, answer.body)
        assert self.whole() == before
        (error,) = answer.body["errors"]
        assert error["status"] == status
        if int(mv.partition(".")[2]) >= 23:
            assert error["code"] == code, error
        else:
            assert "code" not in error
        return dict(error)

    def whole(self) -> tuple[object, ...]:
        """Everything that the core holds, to be compared."""
        model = self.core._store.model
        return (
            dict(model.providers),
            dict(model.consumers),
            set(model.traits),
            set(model.resource_classes),
            {uuid: dict(usage) for uuid, usage in model.usages.items()},
        )

    def provider(
        self, name: str, inventories: Mapping[str, int] | None = None, parent: str | None = None
    ) -> str:
        """Make a provider with these totals; answers its uuid."""
        body = {"name": name, "parent_provider_uuid": parent}
        made: str = self.done("POST", "/resource_providers", body)["uuid"]
        if inventories:
            self.set_inventories(made, {name: {"total": total} for name, total in inventories.items()})
        return made

    def generation(self, provider: str) -> int:
        generation: int = self.done("GET", f"/resource_providers/{provider}")["generation"]
        return generation

    def set_inventories(self, provider: str, inventories: Mapping[str, Any]) -> Any:
        body = {"resource_provider_generation": self.generation(provider), "inventories": inventories}
        return self.done("PUT", f"/resource_providers/{provider}/inventories", body)

    def set_traits(self, provider: str, *traits: str) -> Any:
        body = {"resource_provider_generation": self.generation(provider), "traits": traits}
        return self.done("PUT", f"/resource_providers/{provider}/traits", body)

    def usage(self, provider: str) -> dict[str, int]:
        usages: dict[str, int] = self.done("GET", f"/resource_providers/{provider}/usages")["usages"]
        return usages

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        """What the consumer holds, {provider: {class: amount}}."""
        shown = self.done("GET", f"/allocations/{consumer}")["allocations"]
        return {provider: part["resources"] for provider, part in shown.items()}

    def claim(self, consumer: str, resources: Resources, generation: int | None = None) -> CoreResponse:
        return self.ask("PUT", f"/allocations/{consumer}", claim(resources, generation))


def claim(resources: Resources, generation: int | None = None, **more: Any) -> dict[str, Any]:
    """The body of a claim at 1.39."""
    return {
        "allocations": {provider: {"resources": dict(part)} for provider, part in resources.items()},
        "project_id": "project",
        "user_id": "user",
        "consumer_generation": generation,
        "consumer_type": "INSTANCE",
    } | more


def new() -> str:
    return str(uuid.uuid4())
