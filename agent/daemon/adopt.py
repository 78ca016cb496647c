"""`plimsoll adopt UUID`: the operator says which host this is, while the agent is not running."""

from contextlib import closing

from agent.config.settings import Settings
from agent.errors import IdentityError
from agent.providers.resolve import OwnedProviders
from agent.state import identity
from agent.state.identity import Identity
from agent.state.journal import Journal


def adopt(settings: Settings, host_uuid: str) -> Identity:
    """This host, by its present name, is `host_uuid`: mends a lost file, a rename, a name already taken.

    Raises IdentityError for no uuid, or where claims of another host would be left behind; StateError while
    the agent is running.
    """
    with closing(Journal.open(settings.state_path)) as journal:
        before, claims = journal.host_uuid(), journal.claims()
        if claims and before not in (None, identity.canonical_uuid(host_uuid)):
            raise IdentityError(
                f"The agent's records hold {len(claims)} claims of the host {before}; release them, or adopt "
                f"that uuid instead.",
                uuid=before,
                claims=len(claims),
            )
        adopted = identity.adopt_identity(settings.state_path, settings.host, host_uuid)
        if before != adopted.uuid:
            # Nothing on that provider was written by us, so nothing of it will be taken away.
            journal.remember_owned(OwnedProviders())
            journal.remember_host(adopted.uuid)
        return adopted
