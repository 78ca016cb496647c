"""Runs all checks of the doctor. Later checks build on the results of earlier ones."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.config.options import driver_class
from agent.config.settings import load
from agent.doctor import checks_host, checks_service, checks_state
from agent.doctor.as_user import agent_user, checks_as
from agent.doctor.check import DoctorCheck, bad, good, warning
from agent.doctor.cpu_power import cpu_power
from agent.doctor.device_checks import check_device
from agent.driver import GuestState, PassedDevice
from agent.errors import DriverError, SettingsError


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
    user = agent_user(settings.state_path)

    def requests() -> Iterator[DoctorCheck]:
        yield from checks_state.accepts_files(settings.state_path, user.pw_uid if user else 0)
        yield from checks_service.placement(settings)
        yield from checks_host.hypervisor(settings)
        yield from cpu_power(settings)

    if user is not None and os.geteuid() == 0:
        yield good("user", f"The checks that follow are made as {user.pw_name}, the agent's user.")
    yield from checks_as(user, requests)


_IDLE = frozenset({GuestState.SHUTOFF, GuestState.CRASHED})


def examine_device(
    config_files: Sequence[Path], config_dirs: Sequence[Path], address: str
) -> Iterator[DoctorCheck]:
    """Whether a guest could be given the PCI device now, with managed='yes'. Write nothing.

    Raises UsageError for what is no PCI address, SettingsError.
    """
    settings = load(config_files, config_dirs)
    if settings.compute_driver == "fake":
        yield good(
            "driver",
            "The driver is fake, and its devices do not exist: --device looks at this machine's.",
        )
    driver = driver_class(settings.compute_driver).create(replace(settings.driver, state_path=None))
    holders: dict[str, str] = {}
    try:
        device = driver.host_device(address)
        try:
            holders = {
                unit.unit: f"{guest.name} ({guest.uuid})"
                for guest in driver.guests()
                if guest.state not in _IDLE
                for unit in guest.units
            }
        except DriverError as error:
            yield warning(
                "guests",
                f"Which guests use the device is not known: {error.message.rstrip('.?')}.",
                "`plimsoll doctor` without --device checks the hypervisor.",
            )
    finally:
        driver.close()
    address = device.address if device is not None else address
    yield from check_device(PassedDevice(address, managed=True, device=device), holders)
