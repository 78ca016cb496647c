"""What `./dev mutants` draws: the changes that its help names, the same ones for the same seed."""

from pathlib import Path

import pytest
from kits.paths import CHECKOUT
from mutants import draw
from mutants.__main__ import equivalent
from mutants.covered import Covered
from mutants.draw import draw_mutants, mutants_of

SOURCE = '''"""A room."""
def f(a: int | None, b: int = 2) -> bool:
    """What it does: 3 < 4."""
    if a is None and b > 1:
        g(b)
    else:
        raise ValueError(f"{a + 1}")
    log.info("done")
    return a + b
Either = Claim | Move
'''


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one module, below a checkout of its own."""
    monkeypatch.setattr(draw, "CHECKOUT", tmp_path)
    (tmp_path / "agent/room").mkdir(parents=True)
    (tmp_path / "agent/room/module.py").write_text(SOURCE)
    return tmp_path / "agent/room/module.py"


def test_each_change_is_one_that_a_test_could_notice(room: Path) -> None:
    assert {(mutant.line, mutant.before, mutant.after) for mutant in mutants_of(room)} == {
        (2, "2", "3"),
        (4, "a is None and b > 1", "(not (a is None and b > 1))"),
        (4, "a is None and b > 1", "(a is None)"),
        (4, "a is None", "(a is not None)"),
        (4, "b > 1", "(b >= 1)"),
        (4, "1", "2"),
        (5, "g(b)", "pass"),
        (7, 'raise ValueError(f"{a + 1}")', "pass"),
        (9, "a + b", "None"),
        (9, "a + b", "(a - b)"),
    }


def test_what_runs_at_the_import_is_felt_by_the_tests_of_the_whole_module(room: Path) -> None:
    felt = {(mutant.line, mutant.felt_at) for mutant in mutants_of(room)}
    assert felt == {(2, (1, 11)), (4, (4, 4)), (5, (5, 5)), (7, (7, 7)), (9, (9, 9))}


def test_a_mutant_changes_its_own_place_alone(room: Path) -> None:
    for mutant in mutants_of(room):
        changed = mutant.applied(room.read_bytes()).decode()
        assert changed.replace(mutant.after, mutant.before, 1).count("\n") == SOURCE.count("\n")
        assert changed != SOURCE
        assert changed.splitlines()[: mutant.line - 1] == SOURCE.splitlines()[: mutant.line - 1]


def test_a_seed_draws_the_same_mutants_again_and_none_twice(room: Path) -> None:
    drawn = draw_mutants("room", 7, 100)
    assert drawn == draw_mutants("room", 7, 100)
    assert sorted(map(str, drawn)) == sorted(map(str, mutants_of(room)))
    assert draw_mutants("room", 7, 4) != draw_mutants("room", 8, 4)


def test_what_is_said_to_make_no_difference_stands_in_its_module() -> None:
    for (module, within, before, _after), why in equivalent().items():
        lines = [line.strip() for line in (CHECKOUT / module).read_text().splitlines()]
        assert lines.count(within) == 1 and before in within, module
        assert why


def test_the_tests_of_a_module_come_first_and_then_its_rooms_as_far_as_the_time_reaches() -> None:
    far, quick, own, long = "u/test_b.py::far", "u/test_b.py::quick", "u/test_a.py::own", "u/test_b.py::long"
    near = "u/room/test_c.py::near"
    covered = Covered({far: 2.0, quick: 1.0, own: 3.0, long: 9.0, near: 4.0})
    covered.tests[("agent/a.py", 1)] = [far, long]
    covered.tests[("agent/a.py", 2)] = [quick, own, far]
    covered.tests[("agent/b.py", 2)] = [long]
    assert covered.nearest("agent/a.py", range(1, 3), bound_s=6.5) == [own, quick, far]
    assert covered.nearest("agent/a.py", range(2, 3), bound_s=5.0) == [own, quick]
    assert covered.nearest("agent/a.py", range(3, 4), bound_s=60) == [own, quick, far, long], "at the import"
    assert covered.nearest("agent/c.py", range(1, 9), bound_s=60) == []
    assert covered.nearest("agent/room/c.py", range(1, 9), bound_s=60) == [near], "in another process"
    covered.tests[("agent/room/a.py", 1)] = [quick, near, own]
    assert covered.nearest("agent/room/a.py", range(1, 2), bound_s=60) == [own, near, quick]
