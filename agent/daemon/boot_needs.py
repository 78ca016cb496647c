"""Keeps the plan file: what a boot must make again for claims and domains, see `agent.carving`."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from agent import log
from agent.backoff import Backoff
from agent.carving.carving import NeededUnit
from agent.carving.needs import needed_units
from agent.carving.plan_file import read_plan_file, write_plan_file
from agent.claims.claim import Claim
from agent.driver import CarvedUnit, Guest
from agent.errors import DriverError, StateError

LOG = log.get(__name__)


class BootNeeds:
    """Writes the file in `folder` where it does not say what is needed now. Any thread may call.

    The file's replacement starts what makes vGPUs at places of their cards; so while the driver does not see
    one of them, the same file is written again, less and less often. `guests` are None while they are not
    known; `carved` is `Driver.carved_units`.
    """

    def __init__(
        self,
        folder: Path,
        claims: Callable[[], Iterable[Claim]],
        guests: Callable[[], Iterable[Guest] | None],
        carved: Callable[[], Iterable[CarvedUnit]],
        backoff: Backoff | None = None,
    ) -> None:
        self._folder = folder
        self._claims = claims
        self._guests = guests
        self._carved = carved
        self._backoff = backoff or Backoff()
        self._lock = threading.Lock()
        self._written: tuple[NeededUnit, ...] | None = None
        self._warned = ""

    def write(self) -> None:
        """Write what is needed now, if it is known and differs.

        A file that cannot be written is told in the log once, and tried again at the next call: the guests
        that run need nothing of it.
        """
        with self._lock:
            guests = self._guests()
            try:
                carved = None if guests is None else tuple(self._carved())
            except DriverError as error:  # the passes report a driver that does not answer
                LOG.debug("What a boot needs is not known: %s", error.message)
                return
            if guests is None or carved is None:
                return
            former = self._former()
            needs = needed_units(self._claims(), guests, carved, former or ())
            if needs == former and not self._is_to_ask_again(needs, carved):
                return
            try:
                write_plan_file(self._folder, needs)
            except StateError as error:
                self._warn(error.message)
            else:
                self._written, self._warned = needs, ""

    def _is_to_ask_again(self, needs: Iterable[NeededUnit], carved: Iterable[CarvedUnit]) -> bool:
        missing = {need.unit for need in needs if need.unit.placement is not None} - {*carved}
        if not missing:
            self._backoff.succeeded()
        if not missing or self._backoff.left_s():
            return False
        self._backoff.failed(busy=True)
        return True

    def _former(self) -> tuple[NeededUnit, ...] | None:
        """What was written last; None where the file is to be written anew."""
        if self._written is None:
            try:
                self._written = read_plan_file(self._folder)
            except StateError as error:
                self._warn(error.message)
                return None
        return self._written

    def _warn(self, problem: str) -> None:
        if problem != self._warned:
            self._warned = problem
            LOG.warning("%s", problem)
