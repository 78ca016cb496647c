"""The status page in a real browser: two widths, light and dark, without JavaScript, with hostile names."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kits.chromium import CONTRASTS, HOSTILE, LOADED, OVERFLOWS, Browser, browser, save
from kits.status import FORGOTTEN, HOST, PGPU_CARD, Sight, asks, fill, guest, listening, sight, trouble

from agent.state.operators import PauseRequest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

WIDE, PHONE = (1120, 1400), (390, 844)
TILES = """
    return Object.fromEntries([...document.querySelectorAll('.tiles > div')].map(tile => {
        const [name, value, note] = tile.children;
        return [name.innerText, [value.innerText, value.className, note.innerText]];
    }));
"""
TAGS = """
    return Object.fromEntries([...document.querySelectorAll('.cards tbody tr')].map(
        row => [row.querySelector('th').firstChild.textContent, row.querySelector('.tag').innerText]));
"""
COLOURS = """
    const fill = each => getComputedStyle(each).fill;
    return [...document.querySelectorAll('.unclaimed')].map(each => each.getBBox().width > 0
        && ![...each.parentElement.querySelectorAll('.all,.used')].map(fill).includes(fill(each)));
"""


HEIGHT = "return document.documentElement.scrollHeight"
NAMES = "return [...document.querySelectorAll('.cards tbody th')].map(each => each.firstChild.textContent)"


@pytest.fixture(scope="module")
def crowds() -> Iterator[dict[int, str]]:
    """{number of guests: address}."""
    with ExitStack() as stack:
        shown = {count: stack.enter_context(sight()) for count in (0, 1, 505, 5000)}
        for count, each in shown.items():
            guests = [guest(f"web{number:04}", VCPU=1, MEMORY_MB=4) for number in range(count)]
            each.world.driver.change(guests=tuple(guests))
            each.world.agent.reconcile("an event")
        yield {count: stack.enter_context(listening(each.host_status)) for count, each in shown.items()}


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def full() -> Iterator[Sight]:
    with sight() as shown:
        fill(shown)
        yield shown


@pytest.fixture(scope="module")
def url(full: Sight) -> Iterator[str]:
    with listening(full.host_status) as where:
        yield where


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "size"), [("desktop", WIDE), ("phone", PHONE)])
def test_it_is_drawn_whole_and_can_be_read(
    window: Browser, url: str, name: str, size: tuple[int, int], scheme: str
) -> None:
    """Nothing sticks out at the side, and every text stands off what is behind it (WCAG 2.2, 1.4.3)."""
    window.emulate("prefers-color-scheme", scheme)
    window.size(*size, phone=name == "phone")
    window.open(url + "/")
    assert window.run("return document.title") == f"{HOST}: ready · Plimsoll"
    assert window.run(OVERFLOWS) == []
    assert window.run(CONTRASTS) == []
    assert window.complaints() == []
    picture = window.picture()
    if (name, scheme) in (("desktop", "light"), ("phone", "dark")):
        save(picture, f"status-page-{name}.png")


@pytest.fixture(scope="module")
def troubled() -> Iterator[str]:
    with sight(gate=True) as shown:
        trouble(shown)
        with listening(shown.host_status) as where:
            yield where


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "size"), [("desktop", WIDE), ("phone", PHONE)])
def test_what_is_wrong_is_drawn_whole_and_can_be_read(
    window: Browser, troubled: str, name: str, size: tuple[int, int], scheme: str
) -> None:
    """The gate is not in effect, the host drained, a device not well, a guest unclaimed, one MOVED AWAY."""
    window.emulate("prefers-color-scheme", scheme)
    window.size(*size, phone=name == "phone")
    window.open(troubled + "/")
    assert window.run(OVERFLOWS) == []
    assert window.run(CONTRASTS) == []
    assert window.complaints() == []
    tiles = window.run(TILES)
    assert tiles["Gate"] == ["NOT IN EFFECT", "bad", "agent away: guests start"]
    assert tiles["Host"] == ["drained", "warn", "by uid 0, schedulers are told: drive 3 is replaced"]
    assert tiles["Claims"][:2] == ["closed", "bad"]
    problems = window.run("return document.querySelector('.alert').innerText")
    for said in (
        "the host is drained by uid 0: drive 3 is replaced",
        f"The device {PGPU_CARD} is unhealthy",
        f"The guest {FORGOTTEN} ",
        "has MOVED AWAY",
        "systemctl restart libvirtd",
    ):
        assert said in problems
    assert window.run(TAGS) == {FORGOTTEN: "unclaimed", "train": "claimed", "web1": "MOVED AWAY"}
    assert window.run(COLOURS) == [True, True, True], "what is in use without a claim has its own colour"
    if (name, scheme) in (("desktop", "light"), ("phone", "dark")):
        save(window.picture(), f"status-page-trouble-{name}.png")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
def test_before_the_first_audit_it_claims_no_findings_and_no_agreement(
    window: Browser, size: tuple[int, int]
) -> None:
    with sight() as shown, listening(shown.host_status) as url:
        window.emulate("prefers-color-scheme", "light")
        window.size(*size, phone=size == PHONE)
        window.open(url + "/")
        assert window.run(TILES)["Findings"] == ["unknown", "warn", "not audited yet"]
        assert "agree" not in window.run("return document.body.innerText")
        assert window.run(OVERFLOWS) == []
        shown.world.agent.run_audit()
        window.open(url + "/")
        number, level, audited = window.run(TILES)["Findings"]
        assert (number, level) == ("0", "good") and audited.startswith("audited 20")


def test_a_pause_is_told_apart_from_a_drain(window: Browser) -> None:
    with sight() as shown, listening(shown.host_status) as url:
        shown.world.operations.pause(PauseRequest(0, 1_790_000_000.0))
        window.size(*PHONE, phone=True)
        window.open(url + "/")
        assert window.run(TILES)["Host"] == ["paused", "warn", "by uid 0: no reason given"]
        shown.world.operations.resume()
        window.open(url + "/")
        assert "Host" not in window.run(TILES)


def test_it_loads_nothing_and_its_policy_keeps_the_style(window: Browser, url: str) -> None:
    window.size(*WIDE)
    window.open(url + "/")
    assert [each for each in window.run(LOADED) if not each.startswith(url)] == []
    assert window.run("return getComputedStyle(document.querySelector('.tiles')).display") == "grid"
    widths = window.run("return [...document.querySelectorAll('.used')].map(each => each.getBBox().width)")
    assert 75.0 in widths and 100.0 in widths, "six of eight, and one of one"


def test_it_is_the_same_without_javascript(window: Browser, url: str) -> None:
    window.emulate("prefers-color-scheme", "light")
    window.size(*PHONE, phone=True)
    window.open(url + "/")
    with browser("--blink-settings=scriptEnabled=false") as without:
        without.emulate("prefers-color-scheme", "light")
        without.size(*PHONE, phone=True)
        without.open(url + "/?refresh=10")
        assert without.picture() == window.picture()
        assert without.complaints() == []


def test_hostile_names_do_nothing(window: Browser) -> None:
    with sight() as shown:
        shown.world.driver.add_guest(guest(HOSTILE, VCPU=1))
        shown.world.operations.claim(asks(HOSTILE + " too", VCPU=1))
        shown.world.agent.reconcile("an event")
        with listening(shown.host_status) as url:
            window.open(url + "/")
            assert window.run("return document.title") == f"{HOST}: ready · Plimsoll"
            assert window.run("return document.scripts.length + document.images.length") == 0
            assert HOSTILE in window.run("return document.body.innerText")
            assert window.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1120, 2560])
@pytest.mark.parametrize("count", [0, 1, 505, 5000])
def test_any_number_of_guests_is_drawn_on_a_few_screens(
    window: Browser, crowds: dict[int, str], count: int, width: int, scheme: str
) -> None:
    window.emulate("prefers-color-scheme", scheme)
    window.size(width, 900, phone=width == 360)
    window.open(crowds[count] + "/")
    assert window.run(OVERFLOWS) == []
    assert window.run(CONTRASTS) == []
    assert window.complaints() == []
    assert window.run(HEIGHT) < (12_000 if width == 360 else 7_000)


def test_the_form_and_the_links_lead_to_every_guest(window: Browser, crowds: dict[int, str]) -> None:
    """The policy lets the form ask this address; the keyboard reaches the field, the button and the links."""
    window.size(*WIDE)
    window.open(crowds[505] + "/?refresh=600")
    reached = window.run(
        "return [...document.querySelectorAll('#find,button,.pages a,summary')].map(each => each.tabIndex)"
    )
    assert len(reached) >= 4 and set(reached) == {0}
    window.run("document.querySelector('.pages a[rel=next]').click()")
    assert window.run(NAMES)[0] == "web0025"
    window.run(
        "document.querySelector('#find').value = 'WEB050'; document.querySelector('.find button').click()"
    )
    assert window.run(NAMES) == [f"web050{each}" for each in range(5)]
    assert "reloads every 600 s" in window.run("return document.querySelector('footer').innerText")
    assert window.complaints() == []


def test_a_degraded_agent_says_so_on_top(window: Browser) -> None:
    with sight() as shown:
        fill(shown)
        shown.world.wire.cut = True
        shown.world.agent.verify()
        with listening(shown.host_status) as url:
            for scheme in ("light", "dark"):
                window.emulate("prefers-color-scheme", scheme)
                window.size(*WIDE)
                window.open(url + "/")
                assert window.run("return document.querySelector('.state').innerText").endswith("degraded")
                assert "Placement does not answer." in window.run(
                    "return document.querySelector('.alert').innerText"
                )
                assert window.run(CONTRASTS) == []
