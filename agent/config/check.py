"""Find what a start of the agent would refuse in settings that are valid each; nothing is written."""

from dataclasses import asdict, replace

from agent.config.options import driver_class
from agent.config.settings import Settings
from agent.errors import DriverError, SettingsError
from agent.placement.connect import check_options
from agent.providers.overlay import overlay
from agent.providers.resolve import uuids_of
from agent.tree import NIL_UUID, ProviderTree


def check_start(settings: Settings) -> tuple[str, ...]:
    """Returns clauses on what could not be checked.

    The driver connects only if there are provider config files to compare with what it describes. Raises
    SettingsError where the driver or the transport to Placement refuses its options, or where a provider
    config file contradicts the driver.
    """
    check_options(settings.placement.kind, asdict(settings.placement))
    driver = driver_class(settings.compute_driver).create(
        replace(settings.driver, state_path=None, read_only=True)
    )
    try:
        if not settings.provider_config.entries:
            return ()
        description = driver.describe()
    except DriverError as error:
        why = error.message.rstrip(".")
        return (f"the provider config files were not compared with the driver: {why}",)
    finally:
        driver.close()
    uuids = uuids_of(description, ProviderTree(), NIL_UUID)
    conflicts = overlay(settings.provider_config, description, uuids).conflicts
    if conflicts:
        raise SettingsError(" ".join(conflicts))
    return ()
