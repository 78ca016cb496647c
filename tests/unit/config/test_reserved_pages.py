"""[DEFAULT] reserved_huge_pages in nova's form."""

from __future__ import annotations

import pytest

from agent.config.reserved_pages import parse_reserved_pages
from agent.driver import ReservedPages
from agent.errors import SettingsError


def test_the_pages_of_each_node_and_size() -> None:
    texts = ["node:0,size:2048,count:64", " node:1, size:1GB, count:1", ""]
    assert parse_reserved_pages(texts) == (ReservedPages(0, 2048, 64), ReservedPages(1, 1 << 20, 1))


@pytest.mark.parametrize(
    "text",
    [
        "64",
        "node:0,size:2048",
        "node:0,size:big,count:1",
        "node:a,size:4,count:1",
        "node:0,size:4,count:1,x:2",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="is not node:N,size:SIZE,count:N"):
        parse_reserved_pages([text])
