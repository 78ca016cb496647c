"""Which placement this host's claims are kept in, so that a host that is pointed at another one loses none.

It is written beside the host's uuid, in words, and compared at each start.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.claims.claim import Claim, ClaimState
from agent.config.settings import PlacementSettings
from agent.durable.files import write_atomically
from agent.errors import ApplyError, StateError
from agent.placement.client import PlacementClient

HOME_FILE = "placement_home"
NAMED_MAX = 3
TEXT_CHARS_MAX = 1000


def place(settings: PlacementSettings) -> str:
    """The placement that the settings name, in words that stay the same as long as it is the same."""
    if settings.kind == "embedded":
        return "the embedded placement"
    where = (
        settings.endpoint_override or f"that of {settings.auth_url}, region {settings.region_name or 'any'}"
    )
    return f"the remote placement {where}"


def arrive(state_path: Path, client: PlacementClient, here: str, claims: Iterable[Claim]) -> None:
    """Make `here`, in words, the placement of this host, if it holds all of the host's claims.

    Where the host was here before, one question shows whether it is still known. Raises ApplyError where
    claims are missing, and nothing was written; StateError and PlacementError where it cannot be known.
    """
    before = _read(state_path / HOME_FILE)
    granted = [claim for claim in claims if claim.state is ClaimState.CLAIMED]
    if before == here:
        _check_known(client, here, granted)
        return
    missing = [] if before is None else [claim for claim in granted if not _held(client, claim)]
    if missing:
        raise ApplyError(
            f"This host comes from {before}, and {here} does not hold {len(missing)} of its {len(granted)} "
            f"claims ({_named(missing)}); nothing was written. Stop the agent and bring them over with "
            "`plimsoll placement export` and `import`, point [placement] back, or release them.",
            consumers=[claim.consumer for claim in missing],
            before=before,
            here=here,
        )
    _write(state_path / HOME_FILE, here)


def _check_known(client: PlacementClient, here: str, granted: Sequence[Claim]) -> None:
    """A provider with allocations on it cannot be deleted: one that is gone went with the whole database."""
    in_use = next((provider for claim in granted for provider in claim.allocations), None)
    if in_use is not None and client.find_provider(uuid=in_use) is None:
        raise ApplyError(
            f"This host has {len(granted)} claims ({_named(granted)}), but {here} no longer knows its "
            "providers: its database was lost or replaced. Nothing was written. Restore the database from a "
            "backup, or release the claims and claim again.",
            consumers=[claim.consumer for claim in granted],
            here=here,
        )


def _named(claims: Sequence[Claim]) -> str:
    named = ", ".join(claim.request.name or claim.consumer for claim in claims[:NAMED_MAX])
    return named + (f" and {len(claims) - NAMED_MAX} more" if len(claims) > NAMED_MAX else "")


def _held(client: PlacementClient, claim: Claim) -> bool:
    held = client.allocations_of(claim.consumer).allocations
    return all(
        held.get(provider, {}).get(name, 0) >= amount
        for provider, amounts in claim.allocations.items()
        for name, amount in amounts.items()
    )


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(TEXT_CHARS_MAX).strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{path} cannot be read: {error}.", path=str(path)) from error


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, f"{text}\n")
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}.", path=str(path)) from error
