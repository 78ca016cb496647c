"""`plimsoll adopt UUID`: the operator gives this host a uuid while the agent is not running."""

from contextlib import closing

from agent.config.settings import Settings
from agent.errors import IdentityError, counted
from agent.providers.resolve import OwnedProviders
from agent.reconcile.placement_memory import go_on_without
from agent.state import identity
from agent.state.identity import Identity, WriterRecord
from agent.state.journal import Journal


def adopt(settings: Settings, host_uuid: str) -> Identity:
    """Make `host_uuid` the uuid of this host under its current name.

    Repairs a lost uuid file, a changed host name, a name that another provider has, or the mark of another
    agent: at its next start the agent writes for the host again, even if another agent wrote last. Raises
    IdentityError where the text is no uuid, or where the journal has claims of another host; StateError while
    the agent is running.
    """
    wanted = identity.canonical_uuid(host_uuid)
    with closing(Journal.open(settings.state_path)) as journal:
        recorded, claims = journal.host_uuid(), journal.claims()
        if claims and recorded not in (None, wanted):
            raise IdentityError(
                f"The agent's journal has {counted(len(claims), 'claim')} of the host {recorded}; release "
                f"{'it' if len(claims) == 1 else 'them'}, or adopt that uuid instead.",
                uuid=recorded,
                claims=len(claims),
            )
        adopted = identity.adopt_identity(settings.state_path, settings.host, wanted)
        go_on_without(settings.state_path)
        journal.remember_writer(WriterRecord(journal.writer().own, takes_over=True))
        if recorded != adopted.uuid:
            # The agent has written nothing on that provider, so it must not remove anything there.
            journal.remember_owned(OwnedProviders())
            journal.remember_host(adopted.uuid)
        return adopted
