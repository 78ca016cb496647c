"""Which tests execute a line of the code: recorded once for a state of the checkout, by one run of all tests.

As a pytest plugin (`-p mutants.covered`) it writes what the tests of its process executed. `sys.monitoring`
reports each line once a test, so that such a run takes little longer than another; it is of Python 3.12.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

RECORD_VARIABLE = "PLIMSOLL_MUTANTS_RECORD"
"""The folder that the plugin writes into, a file for each process of tests."""
_TOOL = 4  # the first that has no fixed meaning


@dataclass(slots=True)
class Covered:
    """`seconds` of each test; `tests`: (path below the checkout, line) -> those that execute it."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))

    def nearest(self, module: str, lines: range, bound_s: float) -> Sequence[str]:
        """The tests of these lines: those of the module's own file first, its room's, then the quickest.

        Lines that no test executes may run at the import, or in a process that a test starts: then those of
        the module's own file and of its other lines. They take `bound_s` together at most, as far as the
        record tells.
        """
        own, room = f"test_{Path(module).stem}", f"/{Path(module).parent.name}/"
        there = {test for line in lines for test in self.tests.get((module, line), ())}
        if not there:
            there = {test for test in self.seconds if f"{room}{own}.py" in test}
            there.update(*(tests for (path, _), tests in self.tests.items() if path == module))
        chosen, left_s = [], bound_s
        nearest = sorted(
            there, key=lambda test: (own not in test, room not in test, self.seconds[test], test)
        )
        for test in nearest:
            left_s -= self.seconds[test]
            if left_s < 0:
                break
            chosen.append(test)
        return chosen


def read(folder: Path) -> Covered:
    """What all processes of a run wrote."""
    covered = Covered()
    for file in sorted(folder.glob("*.pickle")):
        seconds, tests = pickle.loads(file.read_bytes())
        names = list(seconds)
        covered.seconds |= seconds
        for place, numbers in tests.items():
            covered.tests[place] += [names[number] for number in numbers]
    return covered


class _Recorder:
    """Of one process."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._roots = tuple(f"{root}/{name}/" for name in ("agent", "drivers"))
        self._skipped = len(str(root)) + 1
        self._folder = folder
        self._executed: set[tuple[str, int]] = set()
        self._seconds: dict[str, float] = {}
        self._tests: dict[tuple[str, int], list[int]] = defaultdict(list)
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        self._restart = monitoring.restart_events
        self._disable = monitoring.DISABLE
        monitoring.use_tool_id(_TOOL, "plimsoll mutants")
        monitoring.register_callback(_TOOL, monitoring.events.LINE, self._on_line)
        monitoring.set_events(_TOOL, monitoring.events.LINE)

    def _on_line(self, code: CodeType, line: int) -> object:
        if code.co_filename.startswith(self._roots):
            self._executed.add((code.co_filename, line))
        return self._disable

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._executed.clear()
        self._restart()
        began = time.monotonic()
        result = yield
        number = len(self._seconds)
        self._seconds[item.nodeid] = time.monotonic() - began
        for file, line in tuple(self._executed):
            self._tests[file[self._skipped :], line].append(number)
        return result

    def pytest_sessionfinish(self) -> None:
        told: tuple[Mapping[str, float], Mapping[tuple[str, int], list[int]]] = (
            self._seconds,
            dict(self._tests),
        )
        if self._seconds:
            self._folder.joinpath(f"{os.getpid()}.pickle").write_bytes(pickle.dumps(told))


def pytest_configure(config: pytest.Config) -> None:
    """Begins to record, where a run of the mutants asks for it."""
    config.pluginmanager.register(_Recorder(config.rootpath, Path(os.environ[RECORD_VARIABLE])))
