"""Where the pass asks for what an operator configured; a reload changes it."""

from agent import log
from agent.driver import Description
from agent.errors import SettingsError
from agent.providers.overlay import OverlayResult, overlay
from agent.providers.provider_config import ProviderConfig
from agent.providers.resolve import uuids_of
from agent.tree import ProviderTree

LOG = log.get(__name__)


class Laying:
    """The provider config files in force, for the host whose root has that uuid."""

    def __init__(self, root: str, config: ProviderConfig | None = None) -> None:
        self._root = root
        self._config = config or ProviderConfig()
        self._told: frozenset[str] = frozenset()

    def over(self, description: Description, current: ProviderTree) -> OverlayResult:
        """What the driver describes with what is configured; entries that mean nothing here are logged once.

        A file may be meant for many hosts, so those are no fault.
        """
        laid = self._laid(self._config, description, current)
        unmatched = frozenset(entry.where for entry in laid.unmatched)
        for entry in laid.unmatched:
            if entry.where not in self._told:
                LOG.info("%s: this host's driver describes no provider %s.", entry.where, entry.provider)
        self._told = unmatched
        return laid

    def use(
        self, config: ProviderConfig, description: Description | None, current: ProviderTree | None
    ) -> bool:
        """Go on with another configuration; whether it is another. Raises SettingsError, changing nothing,

        where it contradicts what the driver last described, if that is known.
        """
        if config == self._config:
            return False
        if description is not None:
            conflicts = self._laid(config, description, current or ProviderTree()).conflicts
            if conflicts:
                raise SettingsError(" ".join(conflicts))
        self._config = config
        return True

    def _laid(self, config: ProviderConfig, description: Description, current: ProviderTree) -> OverlayResult:
        if not config.entries:
            return OverlayResult(description)
        return overlay(config, description, uuids_of(description, current, self._root))
