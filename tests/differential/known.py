"""The differences that are meant: where the reference is wrong, or leaves a choice. Nothing else may differ.

Each is described, with its reason, under the same name in docs/placement-differences.md. More show only in
candidates, and are looked for in oracle.py; one is undone after each write, in reference.py.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple

from .exchange import Answer, Request
from .oracle import IN_TREE, LOST, SUMS
from .reference import GHOSTS


class Known(NamedTuple):
    """A difference by name, and the test that says whether a pair of answers shows it.

    The test gets the request, their answer, ours, and the places that differ (see compare.differences).
    """

    name: str
    shown_by: Callable[[Request, Answer, Answer, Set[str]], bool]


def _reference_crashed(request: Request, theirs: Answer, ours: Answer, places: Set[str]) -> bool:
    """Nothing was written there, so only an answer that wrote nothing here either is comparable."""
    harmless = ours.status < 500 if request.method == "GET" else 400 <= ours.status < 500
    return theirs.status == 500 and harmless


def _unknown_name_in_later_group(request: Request, theirs: Answer, ours: Answer, places: Set[str]) -> bool:
    return (
        request.path.startswith("/allocation_candidates")
        and (theirs.status, ours.status) == (200, 400)
        and not theirs.body["allocation_requests"]
        and str(ours.body["errors"][0]["detail"]).startswith("No such")
    )


def _vary_left_out(request: Request, theirs: Answer, ours: Answer, places: Set[str]) -> bool:
    return places == {"vary"} and theirs.status in (403, 404) and "vary" not in theirs.headers


def _last_modified_left_out(request: Request, theirs: Answer, ours: Answer, places: Set[str]) -> bool:
    return (
        places == {"last-modified"}
        and (request.method, ours.status) == ("PUT", 200)
        and request.path.startswith("/resource_providers/")
        and "last-modified" in ours.headers
    )


KNOWN = (
    Known("reference-crashes", _reference_crashed),
    Known("unknown-names-are-always-refused", _unknown_name_in_later_group),
    Known("vary-on-every-answer", _vary_left_out),
    Known("last-modified-on-every-provider", _last_modified_left_out),
)

NAMES = (SUMS, LOST, IN_TREE, GHOSTS, *(known.name for known in KNOWN))


def known_difference(request: Request, theirs: Answer, ours: Answer, places: Set[str]) -> str | None:
    """The name of the meant difference that the two answers show, or None."""
    return next((known.name for known in KNOWN if known.shown_by(request, theirs, ours, places)), None)
