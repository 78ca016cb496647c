"""Kills embedded_crash_program.py at every system call that touches its files, and checks what is left.

    python tests/kits/embedded_crash_points.py        every point; prints how many there were

All or nothing: what was acknowledged is there, the step under way is there whole or not at all, and nothing
else.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

PROGRAM = Path(__file__).with_name("embedded_crash_program.py")
TOP = PROGRAM.parents[2]
sys.path[:0] = [str(TOP), str(TOP / "tests")]

from agent.placement.embedded import Core  # noqa: E402
from agent.placement.embedded.model import Model  # noqa: E402
from kits.embedded_crash_program import migrated, opened, program  # noqa: E402
from kits.tracker import fast_directory  # noqa: E402

SYSCALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink", "fallocate", "write", "rename")
FILES = ("placement.db", *(f"placement.db{end}" for end in ("-wal", "-shm", "-journal", ".lock", ".ballast")))
RUN_S_MAX = 60
KILLED = 128 + 9

Content = tuple[object, ...]


class Run(NamedTuple):
    """How a run of the program ended: `statuses` by step, as far as it was answered."""

    returncode: int
    statuses: dict[int, int]
    complaint: str


def content(place: Path | str) -> Content:
    """Everything that a core finds in the place, but for the times."""
    with closing(opened(place)) as core:
        return content_of(core._store.model)


def content_of(model: Model) -> Content:
    providers = {
        uuid: (*provider[:5], {name: held[:6] for name, held in provider.inventories.items()}, *provider[6:8])
        for uuid, provider in model.providers.items()
    }
    consumers = {uuid: consumer[:6] for uuid, consumer in model.consumers.items()}
    names = {name for name in (*model.traits, *model.resource_classes) if name.startswith("CUSTOM_")}
    return providers, consumers, names


def expected(skipped: frozenset[int] = frozenset()) -> list[Content]:
    """What is there before the first step and after each one, when the skipped ones are left out."""
    with fast_directory() as folder:
        core = Core.open(Path(folder))
        contents = [content_of(core._store.model)]
        for number, (method, path, body) in enumerate(program()):
            if number not in skipped:
                core.request(method, path, body, microversion="1.39")
            contents.append(content_of(core._store.model))
        core.close()
    return contents


def run(mode: str, place: Path | str, injection: str | None = None) -> Run:
    """Run the program, under strace where something is to be injected (see strace(1), "Tampering")."""
    command = [sys.executable, "-P", str(PROGRAM), mode, str(place)]
    if injection is not None:
        call = injection.partition(":")[0]
        # Only calls on files of the state directory count. A migration makes more than can be named, and
        # tells nothing that would have to be left out.
        names = FILES if isinstance(place, Path) and mode != "migrate" else ()
        files = [f"--trace-path={place}/{name}" for name in names]
        strace = [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={call}",
            "-e",
            f"inject={injection}",
        ]
        command = [*strace, *files, *command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False, env={"PYTHONPATH": str(TOP)}
    )
    told = re.findall(r"^(\d+) (\d+)$", done.stdout, re.MULTILINE)
    returncode = KILLED if done.returncode == -9 else done.returncode
    return Run(returncode, {int(number): int(status) for number, status in told}, done.stderr)


@contextmanager
def copied(start: Path | None) -> Iterator[Path]:
    """A state directory, empty or as that one is."""
    with fast_directory() as folder:
        state_dir = Path(folder) / "state"
        if start is None:
            state_dir.mkdir()
        else:
            shutil.copytree(start, state_dir)
        yield state_dir


def kill_points(
    mode: str,
    begun: Callable[[], AbstractContextManager[Path | str]],
    stride: int = 1,
    calls: Iterable[str] = SYSCALLS,
) -> Iterator[str]:
    """Kill at every `stride`th call of each kind, each time in a place of its own; check what is left there.

    :raises AssertionError: something was half there, or lost
    """
    contents = expected()
    for call in calls:
        for number in itertools.count(1, stride):
            with begun() as place:
                point = f"{mode}, killed at {call} number {number}"
                ended = run(mode, place, f"{call}:signal=KILL:when={number}")
                left = content(place)
                if mode == "open":
                    assert left == contents[-1], point
                else:
                    acknowledged = len(ended.statuses)
                    assert left in contents[acknowledged : acknowledged + 2], point
                if ended.returncode == 0:
                    break
                assert ended.returncode == KILLED, (point, ended)
                yield point


def migration_points(start: Path, stride: int = 1) -> Iterator[str]:
    """The same, through a backup and two migrations: they begin again and end as if nothing had been.

    :raises AssertionError: a migration was half done, or done twice, or a backup is not whole
    """
    for call in SYSCALLS:
        for number in itertools.count(1, stride):
            with copied(start) as state_dir:
                point = f"migrate, killed at {call} number {number}"
                ended = run("migrate", state_dir, f"{call}:signal=KILL:when={number}")
                file = migrated(state_dir)
                notes = file.read("SELECT count(*) FROM journal WHERE note IS NOT 'a' || seq")
                counted = file.read("SELECT (SELECT count(*) FROM later), (SELECT count(*) FROM journal)")
                file.close()
                assert notes[0][0] == 0, point
                assert counted[0][0] == counted[0][1] > 0, point
                for backup in state_dir.glob("*.backup-2-*Z"):
                    shutil.copy(backup, state_dir.parent / FILES[0])
                    assert content(state_dir.parent) == expected()[-1], point
                if ended.returncode == 0:
                    break
                assert ended.returncode == KILLED, (point, ended)
                yield point


def unclean(state_dir: Path) -> Path:
    """Leave the state directory as a program that ended without closing leaves it."""
    state_dir.mkdir()
    core = Core.open(state_dir / "live")
    for method, path, body in program():
        core.request(method, path, body, microversion="1.39")
    shutil.copytree(state_dir / "live", state_dir / "left")
    core.close()
    return state_dir / "left"


def main() -> None:
    with fast_directory() as folder:
        points = 0
        for mode, start in (("write", None), ("open", unclean(Path(folder) / "unclean"))):
            found = sum(1 for _ in kill_points(mode, partial(copied, start)))
            print(f"{mode}: {found} points, all or nothing at each")
            points += found
        found = sum(1 for _ in migration_points(Path(folder) / "unclean" / "left"))
        print(f"migrate: {found} points, all or nothing at each")
        points += found
    print(f"{points} points passed")


if __name__ == "__main__":
    main()
