"""The fleet's page in a real browser: 1000 hosts, all widths, light and dark, the keyboard, hostile names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from kits.chromium import CONTRASTS, HOSTILE, LOADED, OVERFLOWS, Browser, browser, save
from kits.embedded_api import Api, claim, new

from agent.placement.embedded import Core
from agent.placement.embedded.fleet import HostNotes
from agent.placement.embedded.model import InventoryRecord, ProviderRecord
from agent.placement.embedded.serve import Server

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

NOTE = {"state": "ready", "version": "0.1.0"}
MOVE = {"name": f"{HOSTILE}\u202e", "kind": "live", "role": "source", "state": "moving"}
TITLE = "return document.title"
ROWS = "return [...document.querySelectorAll('.fleet:last-of-type tbody tr th')].map(each => each.innerText)"


def inventory(total: int) -> InventoryRecord:
    return InventoryRecord(total, 0, 1, total, 1, 1.0, 0.0)


def filled(core: Core, number: int) -> list[str]:
    """So many hosts with two cells and eight cards each; the uuids of their roots, by name."""
    providers = []
    for place in range(number):
        root, name = new(), f"hv{place:04}.example" if place else HOSTILE
        totals = {"VCPU": inventory(64), "MEMORY_MB": inventory(262144), "DISK_GB": inventory(1800)}
        traits = frozenset({f"CUSTOM_RACK_{place // 40}"})
        providers.append(ProviderRecord(root, name, 1, None, root, totals, traits, frozenset(), 0.0))
        for card in range(8):
            cards = {"VGPU": inventory(4)}
            providers.append(
                ProviderRecord(
                    new(), f"{name} card {card}", 1, root, root, cards, frozenset(), frozenset(), 0.0
                )
            )
    core._store.model.load(providers, ())
    return [each.uuid for each in providers if each.parent_uuid is None]


@pytest.fixture(scope="module")
def fleets() -> Iterator[dict[int, tuple[str, list[str]]]]:
    """{number of hosts: (address, roots)}; some are silent, closed, in use, moving, with findings."""
    with ExitStack() as stack:
        shown = {}
        for number in (0, 3, 1000):
            core = stack.enter_context(closing(Core.open(Path(stack.enter_context(TemporaryDirectory())))))
            roots, api, now = filled(core, number), Api(core), [0.0]
            core.notes = HostNotes(lambda now=now: now[0])
            core.notes.flavors = {"m1.large": "resources=VCPU:4,MEMORY_MB:8192"}
            for place, root in enumerate(roots):
                note: dict[str, Any] = dict(NOTE)
                if place % 50 == 2:
                    note |= {"closed": f"the hypervisor does not answer {HOSTILE}", "state": "degraded"}
                if place % 90 == 0:
                    note |= {"findings": {"leaked_claim": 2}, "moves": [{"instance": new(), **MOVE}]}
                api.done("PUT", f"/hosts/{root}/note", note)
                if place % 3 == 0:
                    api.done("PUT", f"/allocations/{new()}", claim({root: {"VCPU": place % 64 + 1}}))
            now[0] = 301.0
            for place, root in enumerate(roots):
                if place % 80 != 1:
                    core.notes.put(root, core.notes.heard(root).note or NOTE, core._store.model)
            server = stack.enter_context(Server(core, ["127.0.0.1:0"]))
            shown[number] = (f"http://{server.addresses[0]}/fleet", roots)
        yield shown


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1280, 2560])
@pytest.mark.parametrize("number", [0, 3, 1000])
def test_it_is_drawn_whole_and_can_be_read(
    window: Browser, fleets: dict[int, tuple[str, list[str]]], number: int, width: int, scheme: str
) -> None:
    """Nothing sticks out at the side, every text stands off what is behind it, and no name is markup."""
    window.emulate("prefers-color-scheme", scheme)
    window.size(width, 1200, phone=width == 360)
    url, roots = fleets[number]
    pages = ["?room=m1.large&group=trait", ""]
    for asked in (*pages, f"/{roots[0]}" if roots else ""):
        window.open(url + asked)
        assert window.run(TITLE) != "owned"
        assert window.run(OVERFLOWS) == []
        assert window.run(CONTRASTS) == []
        assert window.complaints() == [] and window.run(LOADED) == []
        if width in (360, 1280):
            assert window.unfit() == []
        if number == 1000 and (width, scheme) in ((1280, "light"), (360, "dark")) and asked == pages[0]:
            save(window.picture(), f"fleet-{'page' if width == 1280 else 'phone'}.png")


def test_a_thousand_hosts_are_drawn_within_a_second(
    window: Browser, fleets: dict[int, tuple[str, list[str]]]
) -> None:
    window.size(1280, 1200)
    url, _ = fleets[1000]
    took = []
    for _ in range(3):
        began = time.monotonic()
        window.open(f"{url}?room=m1.large")
        assert window.run("return document.querySelectorAll('.grid a').length") == 1000
        took.append(time.monotonic() - began)
    print("drawn in", [round(each, 2) for each in took])
    assert min(took) < 1.0
    assert window.run(TITLE).startswith(
        "1000 hosts: 13 silent for 5 min, 20 degraded, 12 with findings; room for "
    )


def test_the_keyboard_alone_reaches_a_host_and_comes_back(
    window: Browser, fleets: dict[int, tuple[str, list[str]]]
) -> None:
    url, roots = fleets[3]
    window.open(url)
    reached = []
    for _ in range(60):
        window.press("\ue004")
        where = window.run(
            "const a = document.activeElement; return [a.tagName, a.id || a.getAttribute('href')]"
        )
        reached.append(tuple(where))
        if where[1] == f"fleet/{roots[1]}":
            break
    assert reached[0] == ("A", "#hosts"), "the first is the way past the overview"
    assert {("INPUT", "search"), ("INPUT", "room"), ("SELECT", "class"), ("SELECT", "group")} <= set(reached)
    assert not any(href == f"fleet/{root}" for root in roots for tag, href in reached[:8] if tag == "A")
    window.press("\ue007")
    assert "hv0001.example: silent" in window.run(TITLE)
    assert "The agent has said nothing for five minutes" in window.run("return document.body.innerText")
    window.open(f"{url}/{roots[0]}")
    text = window.run("return document.body.innerText")
    assert "leaked_claim 2" in text and "<script>" in text and "live" in text and "1 VCPU on <script>" in text


def test_it_is_sorted_searched_and_grouped_on_the_server(
    window: Browser, fleets: dict[int, tuple[str, list[str]]]
) -> None:
    url, _ = fleets[1000]
    window.size(1280, 1200)
    window.open(f"{url}?search=hv09&sort=-name")
    assert window.run(ROWS)[:2] == ["hv0999.example", "hv0998.example"] and len(window.run(ROWS)) == 100
    window.open(f"{url}?group=state")
    assert window.run("return [...document.querySelectorAll('.fleet')][0].innerText").count("\n") >= 3
    window.run("[...document.querySelectorAll('.fleet')][0].querySelector('tbody a').click()")
    assert "within=degraded" in window.run("return location.search")
    assert len(window.run(ROWS)) == 20
    window.open(f"{url}?page=2")
    assert "page 2 of 10" in window.run("return document.querySelector('.pages').innerText")
