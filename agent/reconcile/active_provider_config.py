"""The provider config files in force: each pass adds them to the description, a reload replaces them."""

from agent import log
from agent.driver import Description
from agent.errors import SettingsError
from agent.providers.caps import Caps
from agent.providers.provider_config import OverlayResult, ProviderConfig, overlay
from agent.providers.resolve import uuids_of
from agent.tree import ProviderTree

LOG = log.get(__name__)


class ActiveProviderConfig:
    """The provider config files in force on the host whose root provider is `root_uuid`."""

    def __init__(self, root_uuid: str, config: ProviderConfig | None = None) -> None:
        self._root_uuid = root_uuid
        self._config = config or ProviderConfig()
        self._logged: frozenset[str] = frozenset()

    def overlay(self, description: Description, current: ProviderTree) -> OverlayResult:
        """Return the driver's description with the configured entries added.

        An entry for a provider that this host does not have is logged once, and is no error: operators
        share one file among many hosts.
        """
        overlaid = self._overlay(self._config, description, current)
        for entry in overlaid.unmatched:
            if entry.where not in self._logged:
                LOG.info("%s: this host's driver describes no provider %s.", entry.where, entry.provider)
        self._logged = frozenset(entry.where for entry in overlaid.unmatched)
        return overlaid

    @property
    def caps(self) -> Caps:
        """The caps of the settings in force."""
        return self._config.caps

    def replace(
        self, config: ProviderConfig, description: Description | None, current: ProviderTree | None
    ) -> bool:
        """Use another configuration from now on. Returns whether it differs from the present one.

        `description` is the driver's latest, None if there is none to check against. Raises SettingsError,
        and changes nothing, where the configuration contradicts the description.
        """
        if config == self._config:
            return False
        if description is not None:
            conflicts = self._overlay(config, description, current or ProviderTree()).conflicts
            if conflicts:
                raise SettingsError(" ".join(conflicts))
        self._config = config
        return True

    def _overlay(
        self, config: ProviderConfig, description: Description, current: ProviderTree
    ) -> OverlayResult:
        if not config.entries:
            return OverlayResult(description)
        return overlay(config, description, uuids_of(description, current, self._root_uuid))
