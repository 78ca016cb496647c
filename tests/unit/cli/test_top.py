"""What keys do in `plimsoll top`."""

from typing import Any, cast

import pytest

from agent.api.shapes.instance import InstanceShape
from agent.cli.top import TopView, first_line, keys_of


def instance(name: str, memory: int, *, claimed: bool = True) -> InstanceShape:
    claim = {"state": "claimed", "adopted": False, "request": {}}
    claim |= {"allocations": {"p": {"resources": {"MEMORY_MB": memory}}}}
    guest = {"state": "running", "resources": {"MEMORY_MB": memory}, "units": []}
    shape: dict[str, Any] = {"uuid": f"u-{name}", "name": name, "guest": guest, "moved_away": False}
    return cast(InstanceShape, {**shape, "migration_of": None, "claim": claim if claimed else None})


ALL = (instance("b", 10), instance("a", 20), instance("c", 5, claimed=False))


def names(view: TopView) -> list[str]:
    return [shown["name"] for shown in view.choose(ALL)]


def pressed(*keys: str, view: TopView | None = None) -> TopView:
    view = view or TopView()
    for key in keys:
        view = view.press(key, view.choose(ALL))
    return view


def test_keys_are_read_one_by_one() -> None:
    assert keys_of("s\x1b[A\x1bOB\x1b[5~\r\x1b") == ("s", "up", "down", "page up", "enter", "escape")
    assert keys_of("") == ()


def test_s_changes_the_order() -> None:
    assert names(TopView()) == ["a", "b", "c"]
    assert names(pressed("s")) == ["c", "a", "b"], "what has no claim comes first"
    assert names(pressed("s", "s")) == ["a", "b", "c"], "by memory, the largest first"
    assert pressed("s", "s", "s", "s").order == "name"


def test_a_filter_is_typed_and_ended() -> None:
    view = pressed("/", "U", "n", "c", "x", "erase")
    assert view.typing and names(view) == ["c"] and "unc" in view.prompt.lower()
    assert names(pressed("enter", view=view)) == ["c"]
    assert names(pressed("enter", "escape", view=view)) == ["a", "b", "c"]
    assert pressed("q", view=view).wanted == "Uncq", "q is a letter there"


def test_up_and_down_select_and_stop_at_the_ends() -> None:
    assert pressed("down").selected == "u-a"
    assert pressed("down", "j", "down", "down").selected == "u-c"
    assert pressed("up", "k").selected == "u-b"
    assert TopView().press("down", []).selected == ""


@pytest.mark.parametrize(
    ("scroll", "selected", "first"), [(0, None, 0), (50, None, 10), (0, 15, 7), (9, 2, 2), (3, 4, 3)]
)
def test_the_selected_line_is_seen(scroll: int, selected: int | None, first: int) -> None:
    assert first_line(20, 10, scroll, selected) == first


def test_an_explanation_goes_away_with_any_key() -> None:
    view = TopView(explained=("line",))
    assert pressed("page down", view=view).explained is not None
    assert pressed("x", view=view).explained is None
