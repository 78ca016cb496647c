"""/: the version document, at any microversion."""

from __future__ import annotations

import pytest
from kits.embedded_api import Api


@pytest.mark.parametrize("mv", ["1.0", "1.39"])
def test_the_version_document(api: Api, mv: str) -> None:
    (version,) = api.done("GET", "/", mv=mv)["versions"]
    assert (version["min_version"], version["max_version"], version["status"]) == ("1.0", "1.39", "CURRENT")
