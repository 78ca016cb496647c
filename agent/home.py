"""Which placement this host's claims are kept in, so that a host that is pointed at another one loses none.

It is written beside the host's uuid, in words, and compared at each start.
"""

from collections.abc import Iterable
from pathlib import Path

from agent.claim import Claim, ClaimState
from agent.errors import ApplyError, StateError
from agent.files import write_atomically
from agent.placement.client import PlacementClient
from agent.settings import PlacementSettings

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

    Nothing is asked where the host was here before. Raises ApplyError where claims are missing, and nothing
    was written; StateError and PlacementError where it cannot be known.
    """
    before = _read(state_path / HOME_FILE)
    if before == here:
        return
    granted = [claim for claim in claims if claim.state is ClaimState.CLAIMED]
    missing = [] if before is None else [claim for claim in granted if not _held(client, claim)]
    if missing:
        named = ", ".join(claim.request.name or claim.consumer for claim in missing[:NAMED_MAX])
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise ApplyError(
            f"This host comes from {before}, and {here} does not hold {len(missing)} of its {len(granted)} "
            f"claims ({named}{more}); nothing was written. Stop the agent and bring them over with `plimsoll "
            "placement export` and `import`, point [placement] back, or release them.",
            consumers=[claim.consumer for claim in missing],
            before=before,
            here=here,
        )
    _write(state_path / HOME_FILE, here)


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
