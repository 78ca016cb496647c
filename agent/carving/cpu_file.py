"""The file of dedicated CPUs in the state directory: the agent writes it, a process of root checks it."""

import json
from pathlib import Path

from agent.carving.cpus import CpuHold, CpuHolds, holds_to_json, read_holds
from agent.carving.plan_file import read_checked
from agent.durable.files import write_atomically
from agent.errors import StateError

NAME = "cpus.json"


def write_cpu_file(folder: Path, holds: CpuHolds) -> None:
    """Replace the file, durably; that starts the process of root. Raises StateError."""
    path = folder / NAME
    try:
        write_atomically(path, json.dumps(holds_to_json(holds), indent=1) + "\n")
    except OSError as error:
        raise StateError(
            f"{path} cannot be written: {error.strerror}; the CPUs of new claims do not come up before their "
            "guests start."
        ) from error


def read_cpu_file(folder: Path) -> dict[str, CpuHold] | None:
    """What the agent wrote; None where there is no file. Raises StateError as `plan_file.read_plan_file`."""
    return read_checked(folder / NAME, read_holds)
