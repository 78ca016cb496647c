"""A reply without body or headers, and any object with the two methods as a transport."""

from typing import Any

from agent.placement.client import PlacementClient
from agent.placement.transport import Reply, Transport


class Fixed:
    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        return Reply(200, {"resource_providers": []})

    def close(self) -> None:
        pass


def test_an_object_with_both_methods_is_a_transport() -> None:
    transport: Transport = Fixed()
    assert PlacementClient(transport).find_provider(name="host") is None
    assert Reply(204) == Reply(204, None, {})
