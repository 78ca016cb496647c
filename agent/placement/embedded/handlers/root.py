"""/: the version document."""

from __future__ import annotations

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.messages import CoreResponse, Request, json_response


def get(request: Request) -> CoreResponse:
    """GET /"""
    version = {
        "id": f"v{mv.text(mv.MIN)}",
        "max_version": mv.text(mv.MAX),
        "min_version": mv.text(mv.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return json_response(request, {"versions": [version]}, request.store.clock())
