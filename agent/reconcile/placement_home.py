"""Which Placement has this host's claims, so that a changed [placement] section loses none of them.

Its name is kept in the state directory, beside the host's uuid, and compared at each start.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agent.claims.claim import Claim, ClaimState
from agent.config.settings import PlacementSettings
from agent.durable.files import write_atomically
from agent.errors import ApplyError, StateError, counted
from agent.placement.client import PlacementClient

HOME_FILE = "placement_home"
GO_ON = "adopted, from "
"""Before the name of a home: an operator has adopted the host since, so it may have lost what it held."""
NAMED_MAX = 3
TEXT_CHARS_MAX = 1000


def home_name(settings: PlacementSettings) -> str:
    """The name of the Placement that the settings lead to.

    Files on disk have it (`HOME_FILE`, and the tree cache), so the words must stay the same.
    """
    if settings.kind == "embedded":
        return "the embedded placement"
    where = (
        settings.endpoint_override or f"that of {settings.auth_url}, region {settings.region_name or 'any'}"
    )
    return f"the remote placement {where}"


def check_home(
    state_path: Path, client: PlacementClient, home: str, root: str, claims: Iterable[Claim]
) -> bool:
    """Check that the Placement named `home` has all of the host's claims, and remember it as the host's.

    If the host's claims were there before, one request shows whether it still knows them; `root` is the uuid
    of the host's root provider. Returns whether the operator said to go on, whatever it has lost. Raises
    ApplyError where claims are missing, StateError and PlacementError where the agent cannot find out; then
    the agent must write nothing.
    """
    before = _read(state_path / HOME_FILE)
    if before is not None and before.startswith(GO_ON):
        before = before.removeprefix(GO_ON)
        if before == home:
            _write(state_path / HOME_FILE, home)
            return True
    granted = [claim for claim in claims if claim.state is ClaimState.CLAIMED]
    if before == home:
        _check_known(client, home, root, granted)
        return False
    missing = [] if before is None else [claim for claim in granted if not _is_held(client, claim)]
    if missing:
        raise ApplyError(
            f"This host comes from {before}, and {home} does not hold {len(missing)} of its "
            f"{counted(len(granted), 'claim')} ({_named(missing)}); nothing was written. Stop the agent "
            f"and bring them over with "
            "`plimsoll placement export` and `import`, point [placement] back, or release them.",
            consumers=[claim.consumer for claim in missing],
            before=before,
            here=home,
        )
    _write(state_path / HOME_FILE, home)
    return False


def go_on_without(state_path: Path) -> None:
    """Let the next start go on with the same Placement, even if that has lost all. Raises StateError."""
    before = _read(state_path / HOME_FILE)
    if before is not None and not before.startswith(GO_ON):
        _write(state_path / HOME_FILE, f"{GO_ON}{before}")


def _check_known(client: PlacementClient, home: str, root: str, granted: Sequence[Claim]) -> None:
    """A provider with allocations cannot be deleted, so one that is gone went with the whole database.

    Unless a reshape that this agent does not know of moved them: then the host's root is still there, or
    their consumers still hold something.
    """
    in_use = next((provider for claim in granted for provider in claim.allocations), None)
    if in_use is None or any(client.find_provider(uuid=each) is not None for each in (in_use, root)):
        return
    if not any(client.allocations_of(claim.consumer).allocations for claim in granted):
        raise ApplyError(
            f"This host has {counted(len(granted), 'claim')} ({_named(granted)}), but {home} no longer "
            "knows its providers: its database was lost or replaced. Nothing was written. Restore the "
            "database from a backup. Without one, stop the agent, run `plimsoll adopt UUID` with the uuid of "
            "this host, and start it: it reports the host anew, and `plimsoll audit --heal` writes the "
            "allocations of its claims again.",
            consumers=[claim.consumer for claim in granted],
            here=home,
        )


def _named(claims: Sequence[Claim]) -> str:
    names = ", ".join(claim.request.name or claim.consumer for claim in claims[:NAMED_MAX])
    return names + (f" and {len(claims) - NAMED_MAX} more" if len(claims) > NAMED_MAX else "")


def _is_held(client: PlacementClient, claim: Claim) -> bool:
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
