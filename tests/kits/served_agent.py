"""One host's agent, on the fake driver, served at a socket for the command line."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kits.agent import World, opened, told
from kits.api_client import serving
from kits.cli_process import plimsoll
from kits.placements import usual_placement


@dataclass(frozen=True)
class ServedAgent:
    """`world` is the agent; to call this runs one command against it."""

    world: World
    socket: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(self.socket, *words)


@contextmanager
def served_agent(directory: Path) -> Iterator[ServedAgent]:
    """The agent before its first pass."""
    with (
        opened(told(directory, usual_placement(directory))) as world,
        serving(world.operations, directory / "s", threads=2),
    ):
        yield ServedAgent(world, directory / "s")
