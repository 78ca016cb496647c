"""`plimsoll top` on a real agent, once and on a terminal."""

import json
import os
import re
import signal
import termios
from pathlib import Path

import pytest
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import HOST, Sight, asks, guest, sight
from kits.terminal import Terminal

from agent.cli.top import fit
from agent.errors import ExitCode


def test_top_shows_the_host_once_where_there_is_no_terminal(full: tuple[Sight, Path]) -> None:
    _, path = full
    shown = output_of(path, "top")
    assert shown.startswith(f"{HOST}  ready since ") and "7 guests  7 claims, open  1 moving" in shown
    assert "VGPU" in shown and "6/8" in shown and "same_host_resize" in shown and "UNCLAIMED" in shown
    assert "unclaimed instance: " in shown and "\x1b" not in shown
    assert shown.count("web1 ") >= 2  # the move and the instance; its migration is no instance
    assert json.loads(output_of(path, "top", "-o", "json"))["pending"] == 0


def test_top_asks_nobody_but_the_agent(full: tuple[Sight, Path]) -> None:
    shown, path = full
    before = shown.world.wire.requests
    output_of(path, "top", "--once")
    assert shown.world.wire.requests == before


def test_top_is_drawn_anew_and_leaves_the_terminal_as_it_was(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    with Terminal(path, "top", "--interval", "0.5") as terminal:
        terminal.read_until("0 claims")
        assert "\x1b[?1049h" in terminal.text and "\x1b[?25l" in terminal.text
        shown.world.operations.claim(asks("late", VCPU=1))
        terminal.read_until("1 claim,")
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until("\x1b[?25h\x1b[?1049l")
        assert terminal.process.wait(10) == ExitCode.DONE
        frames = terminal.text.split("\x1b[H")[1:]
        assert all(each.count("\n") < 20 for each in frames), "a frame is no higher than the terminal"
        assert all(len(re.sub(r"\x1b\[[0-9;]*m|\x1b\[K", "", line)) <= 102 for line in frames[0].splitlines())


def test_top_fits_a_narrow_terminal_and_ends_with_q(fresh: tuple[Sight, Path]) -> None:
    with Terminal(fresh[1], "top", "--interval", "60", columns=24, lines=6) as terminal:
        before = termios.tcgetattr(terminal.keys)
        terminal.read_until("more lines")
        (frame,) = terminal.text.split("\x1b[H")[1:]
        shown = re.sub(r"\x1b\[[0-9;]*[mKJ]", "", frame).splitlines()
        assert len(shown) == 6 and max(map(len, shown)) <= 24
        os.write(terminal.keys, b"x")
        terminal.read_until("lines\x1b[K\x1b[J\x1b[H")  # any other key draws at once
        os.write(terminal.keys, b"q")
        terminal.read_until("\x1b[?25h\x1b[?1049l")
        assert terminal.process.wait(10) == ExitCode.DONE
        assert termios.tcgetattr(terminal.keys) == before


def test_top_sorts_filters_scrolls_and_explains(full: tuple[Sight, Path]) -> None:
    with Terminal(full[1], "top", "--interval", "60", columns=150, lines=44) as terminal:
        terminal.read_until("[by name]")
        os.write(terminal.keys, b"s")
        terminal.read_until("[by claim]")
        os.write(terminal.keys, b"/render-b")
        terminal.read_until("filter: render-b_")
        os.write(terminal.keys, b"\n")
        terminal.read_until("[by claim, filter 'render-b']")
        last = terminal.text.split("\x1b[H")[-1]
        assert "render-b" in last and "built-by-hand" not in last.partition("INSTANCE")[2]
        os.write(terminal.keys, b"\x1b[B")
        terminal.read_until("\x1b[7mrender-b")
        os.write(terminal.keys, b"\n")
        terminal.read_until("It requested 120 DISK_GB")
        os.write(terminal.keys, b"q")
        terminal.read_until("q: quit")
        os.write(terminal.keys, b"\x1bs")
        os.write(terminal.keys, b"q")
        terminal.read_until("\x1b[?25h\x1b[?1049l")
        assert terminal.process.wait(10) == ExitCode.DONE


def test_top_scrolls_where_the_host_is_higher_than_the_screen(full: tuple[Sight, Path]) -> None:
    with Terminal(full[1], "top", "--interval", "60", columns=150, lines=16) as terminal:
        terminal.read_until("q: quit")
        assert "WHEN" not in terminal.text and "more lines" in terminal.text
        os.write(terminal.keys, b"\x1b[6~" * 5)
        terminal.read_until("WHEN")
        os.write(terminal.keys, b"q")
        assert terminal.process.wait(10) == ExitCode.DONE


def test_top_waits_for_an_agent_that_restarts(tmp_path: Path) -> None:
    with Terminal(tmp_path / "none", "top", "--interval", "0.5") as terminal:
        terminal.read_until("no agent listens at")
        assert terminal.process.poll() is None
        with sight() as shown, serving(shown.world.operations, tmp_path / "none"):
            terminal.read_until("0 claims, open")


def test_lines_are_cut_to_the_screen() -> None:
    painted = "\x1b[31mred\x1b[0m and more"
    assert fit([painted], 5, 9) == ["\x1b[31mred\x1b[0m a"]
    assert fit([str(n) for n in range(5)], 80, 3) == ["0", "1", "... and 3 more lines"]
    assert fit([], 80, 3) == []


@pytest.mark.parametrize("interval", ["0", "0.1", "x", "nan", "inf", "4000", "-1"])
def test_an_interval_that_makes_no_sense(full: tuple[Sight, Path], interval: str) -> None:
    done = plimsoll(full[1], "top", "--once", "--interval", interval)
    assert done.returncode == ExitCode.USAGE and "seconds from 0.5 to 3600" in one_line(done)


@pytest.mark.parametrize("words", [("tree",), ("top", "--interval", "60")], ids=["tree", "top"])
def test_unclaimed_use_has_a_colour_of_its_own_on_a_terminal(
    fresh: tuple[Sight, Path], words: tuple[str, ...]
) -> None:
    """Half the memory is claimed, a quarter is used unclaimed: magenta, behind the claimed part's colour."""
    shown, path = fresh
    (memory,) = (
        each.inventories["MEMORY_MB"].capacity
        for each in shown.world.operations.providers()
        if "MEMORY_MB" in each.inventories
    )
    shown.world.operations.claim(asks("claimed", MEMORY_MB=memory // 2))
    shown.world.driver.add_guest(guest("by-hand", MEMORY_MB=memory // 4))
    shown.world.agent.reconcile("an event")
    drawn = re.compile(r"MEMORY_MB +\x1b\[(\d+)m(█+)\x1b\[0m\x1b\[35m(▒+)\x1b\[0m░+ ")
    with Terminal(path, *words, columns=160, lines=60) as terminal:
        terminal.read_until("unclaimed, total")
        found = drawn.search(terminal.text)
    assert found is not None, terminal.text
    claimed, full, unclaimed = found.groups()
    assert claimed not in ("35", "31") and len(full) == 2 * len(unclaimed) == 10
    with Terminal(path, *words, columns=160, lines=60, environment={"NO_COLOR": "1"}) as terminal:
        terminal.read_until("unclaimed, total")
        assert "██▒" in terminal.text and "\x1b[35m" not in terminal.text
