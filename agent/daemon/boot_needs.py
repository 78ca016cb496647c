"""Keeps the plan file: what a boot must make again for claims and domains, see `agent.carving`."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from agent import log
from agent.backoff import Backoff
from agent.carving.carving import NeededUnit, needed_units
from agent.carving.files import read_plan_file, write_plan_file
from agent.claims.claim import Claim
from agent.daemon.kept_needs import KeptNeeds
from agent.driver import CarvedUnit, Guest
from agent.errors import DriverError

LOG = log.get(__name__)


class BootNeeds:
    """Writes the file in `folder` where it does not say what is needed now. Any thread may call.

    The file's replacement starts what makes vGPUs at places of their cards. `guests` are None while they are
    not known; `carved` is `Driver.carved_units`.
    """

    def __init__(
        self,
        folder: Path,
        claims: Callable[[], Iterable[Claim]],
        guests: Callable[[], Iterable[Guest] | None],
        carved: Callable[[], Iterable[CarvedUnit]],
        backoff: Backoff | None = None,
    ) -> None:
        self._claims = claims
        self._guests = guests
        self._carved = carved
        self._file = KeptNeeds(partial(read_plan_file, folder), partial(write_plan_file, folder), backoff)

    def write(self) -> None:
        """Write what is needed now, see `KeptNeeds.keep`: the guests that run need nothing of it."""
        self._file.keep(self._look)

    def _look(
        self, former: tuple[NeededUnit, ...] | None
    ) -> tuple[tuple[NeededUnit, ...], Callable[[], bool]] | None:
        guests = self._guests()
        if guests is None:
            return None
        try:
            carved = tuple(self._carved())
        except DriverError as error:  # the passes report a driver that does not answer
            LOG.debug("What a boot needs is not known: %s", error.message)
            return None
        needs = needed_units(self._claims(), guests, carved, former or ())
        return needs, lambda: {need.unit for need in needs if need.unit.placement is not None} <= {*carved}
