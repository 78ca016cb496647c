"""Find what a start of the agent would refuse in settings that are valid each; nothing is written."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from agent.config.options import driver_class
from agent.config.places import check_api_socket, check_state_path
from agent.config.settings import PlacementSettings, Settings
from agent.driver import Driver
from agent.errors import DriverDataError, DriverError, SettingsError, StateError
from agent.placement.connect import check_options
from agent.providers.overlay import overlay
from agent.providers.resolve import uuids_of
from agent.tree import NIL_UUID, ProviderTree


def check_start(settings: Settings) -> tuple[str, ...]:
    """Returns clauses on what could not be checked, and on what the agent would start with, but not work.

    The driver connects only if there are CPU sets or provider config files to compare with what it describes.
    Whether another process uses an address is not looked at. Raises SettingsError where the driver or the
    transport to Placement refuses its options, where a file or a socket of the agent cannot be made, or where
    a provider config file contradicts the driver.
    """
    notes = [*_check_places(settings), *_missing_files(settings.placement)]
    driver = driver_class(settings.compute_driver).create(
        replace(settings.driver, state_path=None, read_only=True)
    )
    try:
        notes += _check_description(settings, driver)
    finally:
        driver.close()
    return tuple(notes)


def _check_places(settings: Settings) -> Iterator[str]:
    """Notes on what only another user can check. Raises SettingsError."""
    directory, placement = settings.api.socket.parent, settings.placement
    for check in (
        partial(check_state_path, settings.state_path),
        partial(check_api_socket, settings.api.socket),
        partial(check_options, placement.kind, asdict(placement), to_be_made=directory),
    ):
        try:
            check()
        except (SettingsError, StateError) as error:
            if not _is_denied(error):
                raise SettingsError(error.message, **error.details) from error
            yield f"checked only as far as this user may: {error.message.rstrip('.')}"


def _is_denied(error: BaseException | None) -> bool:
    """Whether the cause is that this user may not, which says nothing about the agent's user."""
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__
    return False


def _missing_files(placement: PlacementSettings) -> Iterator[str]:
    if placement.kind != "remote":
        return
    for option in ("cafile", "certfile", "keyfile"):
        path = getattr(placement, option)
        try:
            if path:
                Path(path).open("rb").close()
        except OSError as error:
            yield f"[placement] {option} = {path} cannot be read: {error.strerror}"


def _check_description(settings: Settings, driver: Driver) -> Iterator[str]:
    """Notes on what the driver does not describe, or not offer. Raises SettingsError."""
    host = settings.driver.host_settings
    if not settings.provider_config.entries and host.cpu_shared_set is None and not host.cpu_dedicated_set:
        return
    try:
        description = driver.describe()
    except DriverDataError as error:
        yield f"an agent with these settings does not offer this host: {error.message.rstrip('.')}"
        return
    except DriverError as error:
        if settings.provider_config.entries:
            why = error.message.rstrip(".")
            yield f"the provider config files were not compared with the driver: {why}"
        return
    yield from (sentence.rstrip(".") for sentence in driver.unmatched_options())
    uuids = uuids_of(description, ProviderTree(), NIL_UUID)
    conflicts = overlay(settings.provider_config, description, uuids).conflicts
    if conflicts:
        raise SettingsError(" ".join(conflicts))
