"""The file of dedicated CPUs in the state directory: the agent writes it, a process of root checks it."""

from pathlib import Path

from agent.carving.cpus import CpuHold, CpuHolds, holds_to_json, read_holds
from agent.carving.kept_file import read_kept, write_kept

NAME = "cpus.json"
_LOSS = "the CPUs of new claims do not come up before their guests start"


def write_cpu_file(folder: Path, holds: CpuHolds) -> None:
    """Replace the file, durably; that starts the process of root. Raises StateError."""
    write_kept(folder / NAME, holds_to_json(holds), _LOSS)


def read_cpu_file(folder: Path) -> dict[str, CpuHold] | None:
    """What the agent wrote; None where there is no file. Raises StateError as `read_kept`."""
    return read_kept(folder / NAME, read_holds)
