"""All checks in their order: what comes later needs what came before."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.doctor import host, service, state
from agent.doctor.check import Check, bad, good
from agent.errors import SettingsError
from agent.settings import load


def examine(
    config_files: Sequence[Path],
    config_dirs: Sequence[Path],
    ask: Callable[[str], Any],
    socket: str | None = None,
) -> Iterator[Check]:
    """Each check as it is made; the slow ones, which ask somebody else, are the last. Writes nothing.

    `socket` is where the agent is asked, if not where the settings say.
    """
    yield host.versions()
    yield host.clock()
    try:
        settings = load(config_files, config_dirs)
    except SettingsError as error:
        yield bad("settings", error.message, "`plimsoll config sample` shows every option there is.")
        return
    files = ", ".join(map(str, settings.files)) or "no file, so every option has its default"
    yield good("settings", f"They can be used: {files}.")
    yield from state.state_directory(settings.state_path)
    yield state.identity(settings.state_path, settings.host)
    yield from state.databases(settings.state_path)
    yield from service.agent(Path(socket) if socket else settings.api.socket, ask)
    yield from service.placement(settings)
    yield from host.hypervisor(settings)
