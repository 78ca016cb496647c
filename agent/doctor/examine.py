"""Runs all checks of the doctor. Later checks build on the results of earlier ones."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.config.settings import load
from agent.doctor import checks_host, checks_service, checks_state
from agent.doctor.check import DoctorCheck, bad, good
from agent.errors import SettingsError


def examine(
    config_files: Sequence[Path],
    config_dirs: Sequence[Path],
    ask: Callable[[str], Any],
    socket: str | None = None,
) -> Iterator[DoctorCheck]:
    """Yield the result of each check; the slow ones, which make requests, come last. Write nothing.

    `ask(socket path)` is GET /v1/status of the agent. `socket` overrides the socket in the settings.
    """
    yield checks_host.versions()
    yield checks_host.clock()
    try:
        settings = load(config_files, config_dirs)
    except SettingsError as error:
        yield bad("settings", error.message, "`plimsoll config sample` shows every option.")
        return
    files = ", ".join(map(str, settings.files)) or "no file; every option has its default"
    yield good("settings", f"The settings are valid: {files}.")
    yield from checks_state.state_directory(settings.state_path)
    yield checks_state.identity(settings.state_path, settings.host)
    yield from checks_state.databases(settings.state_path)
    yield from checks_service.agent(Path(socket) if socket else settings.api.socket, ask)
    yield from checks_service.placement(settings)
    yield from checks_host.hypervisor(settings)
