"""What the programs know of the state: enough to ask for things that exist, with generations that fit."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .exchange import Request, Side
from .vocabulary import CLASSES, PROVIDERS, rarely


class World:
    """Reads one side. Both sides agree until the first difference, which ends the program."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def providers(self) -> list[dict[str, Any]]:
        """Every provider: `{uuid, name, generation, parent_provider_uuid, root_provider_uuid}`."""
        found: list[dict[str, Any]] = self._get("/resource_providers")["resource_providers"]
        return sorted(found, key=lambda one: str(one["uuid"]))

    def uuids(self) -> list[str]:
        """The uuids of every provider."""
        return [str(one["uuid"]) for one in self.providers()]

    def generation(self, provider: str) -> int:
        """The provider's generation; 0 when there is no such provider."""
        return int((self._get(f"/resource_providers/{provider}") or {}).get("generation", 0))

    def inventories(self, provider: str) -> dict[str, dict[str, Any]]:
        """The provider's inventories by class."""
        return (self._get(f"/resource_providers/{provider}/inventories") or {}).get("inventories", {})

    def classes(self) -> list[str]:
        """The resource classes that any provider has inventory of."""
        return sorted({name for uuid in self.uuids() for name in self.inventories(uuid)})

    def consumer(self, uuid: str) -> dict[str, Any]:
        """The consumer's allocations with its generation, project, user and type."""
        return self._get(f"/allocations/{uuid}") or {}

    def _get(self, path: str) -> Any:
        answer = self._side.ask(Request("GET", path))
        return answer.body if answer.status == 200 else None


@st.composite
def some_provider(draw: st.DrawFn, world: World) -> str:
    """The uuid of a provider, rarely of one that may not exist."""
    uuids = world.uuids()
    return draw(st.sampled_from(uuids if uuids and not draw(rarely(12)) else PROVIDERS))


@st.composite
def some_class(draw: st.DrawFn, world: World, provider: str) -> str:
    """A class that the provider has inventory of, more often than another."""
    held = sorted(world.inventories(provider))
    return draw(st.sampled_from(held if held and not draw(rarely(3)) else (*CLASSES, "CUSTOM_UNKNOWN")))
