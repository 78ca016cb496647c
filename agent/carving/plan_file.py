"""The plan file in the state directory: the agent writes it; the carver, which runs as root, checks it."""

from collections.abc import Iterable
from pathlib import Path

from agent.carving.carving import NeededUnit
from agent.carving.kept_file import read_kept, write_kept
from agent.carving.needs import needs_to_json, read_needs

NAME = "carving.json"
_LOSS = "after a reboot the devices of new guests are not made again"


def write_plan_file(folder: Path, needs: Iterable[NeededUnit]) -> None:
    """Replace the file, durably. Raises StateError."""
    write_kept(folder / NAME, needs_to_json(needs), _LOSS)


def read_plan_file(folder: Path) -> tuple[NeededUnit, ...]:
    """What claims and domains need; nothing where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / NAME, read_needs) or ()
