"""Strategies for what is odd about HTTP rather than Placement: methods, paths, versions, media types."""

from __future__ import annotations

from hypothesis import strategies as st

from .exchange import Request
from .vocabulary import CONSUMERS, PROVIDERS, minors, rarely

PATHS = (
    "/",
    "/resource_providers",
    f"/resource_providers/{PROVIDERS[0]}",
    f"/resource_providers/{PROVIDERS[0]}/inventories",
    f"/resource_providers/{PROVIDERS[0]}/inventories/VCPU",
    f"/resource_providers/{PROVIDERS[0]}/usages",
    f"/resource_providers/{PROVIDERS[0]}/allocations",
    f"/resource_providers/{PROVIDERS[0]}/aggregates",
    f"/resource_providers/{PROVIDERS[0]}/traits",
    "/resource_classes",
    "/resource_classes/CUSTOM_C0",
    "/traits",
    "/traits/CUSTOM_T0",
    "/allocations",
    f"/allocations/{CONSUMERS[0]}",
    f"/allocations/{CONSUMERS[0].replace('-', '')}",
    "/allocations/no-uuid",
    "/allocation_candidates",
    "/usages",
    "/reshaper",
    "/nothing",
    "/resource_providers/",
    "/resource_providers/no-uuid",
    f"/resource_providers/{PROVIDERS[0]}/nothing",
    f"/resource_providers/{PROVIDERS[0].upper()}",
)
_VERSIONS = ("latest", "1.40", "2.0", "1.x", "1", "1.1.1", "-1.0", "0.39")
_TYPES = ("application/json", "application/json; charset=utf-8", "text/plain", "application/jsonx")
_TEXTS = ("", "{", "[]", "null", '"x"', "NaN", "{}")
_ACCEPTS = (
    "application/json",
    "*/*",
    "application/*",
    "text/html",
    "application/json;q=0",
    "text/html, */*;q=0.1",
)
_METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")


@st.composite
def odd_requests(draw: st.DrawFn) -> Request:
    """Any method on any path at any version, served or not, with bodies that suit nobody."""
    version = draw(st.sampled_from(_VERSIONS)) if draw(rarely(4)) else f"1.{draw(minors)}"
    body = draw(st.sampled_from((None, None, {}, [], {"x": 1})))
    return Request(draw(st.sampled_from(_METHODS)), draw(st.sampled_from(PATHS)), body, version)


@st.composite
def odd_texts(draw: st.DrawFn) -> Request:
    """The same as text: media types that do not fit, bodies that are no JSON."""
    plain = draw(odd_requests())
    headers = {"content-type": draw(st.sampled_from(_TYPES))}
    if draw(rarely(3)):
        headers["accept"] = draw(st.sampled_from(_ACCEPTS))
    text = draw(st.sampled_from(_TEXTS))
    return Request(plain.method, plain.path, None, plain.microversion, headers, text)
