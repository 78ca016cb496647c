"""/ : the version document"""

from __future__ import annotations

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.answers import CoreResponse, Request, ok


def get(request: Request) -> CoreResponse:
    version = {
        "id": f"v{mv.text(mv.MIN)}",
        "max_version": mv.text(mv.MAX),
        "min_version": mv.text(mv.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return ok(request, {"versions": [version]}, request.store.clock())
