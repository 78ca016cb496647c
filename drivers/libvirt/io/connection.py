"""The connection to libvirt: opened when needed, given up when it hangs or breaks, opened again.

It is read-only. Python's libvirt objects close their connection when they are garbage, which is a call that
can hang like any other; so a connection that is given up is closed by the thread that still uses it.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import libvirt

from agent.errors import DriverUnavailable
from drivers.libvirt.io.deadline import Beat, Hung, Runner
from drivers.libvirt.io.events import KEEPALIVE_COUNT, KEEPALIVE_INTERVAL_S, Subscriptions, start_event_loop
from drivers.libvirt.io.hints import Hints

LOG = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class Session:
    """One open connection. `beat()` goes before each call on `libvirt`, libvirt's own connection object."""

    def __init__(self, beat: Beat) -> None:
        self.beat = beat
        self.libvirt: Any = None
        self.static: Any = None
        """The reader's own: what hardly changes during a connection."""
        self.has_events = False
        self.has_device_events = False
        self.lists_inactive_devices = True
        self.given_up = False
        self._subscriptions: Subscriptions | None = None

    def open(self, uri: str, hints: Hints, why: Callable[[str], None], lost: Callable[[str], None]) -> None:
        """Raises libvirtError; what was opened until then is left to `close`."""
        start_event_loop()
        self.beat()
        self.libvirt = libvirt.openReadOnly(uri)
        self.beat()
        try:
            self.libvirt.setKeepAlive(KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT)
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise
        self.beat()
        self._subscriptions = Subscriptions(
            self.libvirt,
            hints,
            lambda text: None if self.given_up else why(text),
            lambda text: None if self.given_up else lost(text),
        )
        self.has_events = self._subscriptions.complete
        self.has_device_events = self._subscriptions.devices
        hints.everything()
        LOG.info("connected to libvirt at %s", uri)

    @property
    def usable(self) -> bool:
        return self.libvirt is not None

    def alive(self) -> bool:
        """False when the connection is known to be broken. Asks the library, not the daemon."""
        try:
            return bool(self.libvirt is not None and self.libvirt.isAlive())
        except libvirt.libvirtError:
            return False

    def close(self) -> None:
        """May hang; is called where that is harmless."""
        if self._subscriptions is not None:
            self._subscriptions.cancel()
        if self.libvirt is not None:
            try:
                self.libvirt.close()
            except libvirt.libvirtError as error:
                LOG.debug("closing a connection to libvirt: %s", error)
        self._subscriptions = self.libvirt = self.static = None


class Connection:
    """Runs pieces of work on a session, one at a time, each with its deadline.

    `opened(again)` is called when a session was opened, `again` if not at the first try; `lost(why)` when one
    is gone, `why(text)` on events.
    """

    def __init__(
        self,
        uri: str,
        runner: Runner,
        hints: Hints,
        *,
        turn_timeout_s: float,
        why: Callable[[str], None],
        opened: Callable[[bool], None],
        lost: Callable[[str], None],
    ) -> None:
        self._uri = uri
        self._runner = runner
        self._hints = hints
        self._turn_timeout_s = turn_timeout_s
        self._why = why
        self._opened = opened
        self._lost = lost
        self._session: Session | None = None
        self._turn = threading.Lock()
        self._tries = 0
        self._broken = threading.Event()
        self._closed = False

    def run(self, what: str, work: Callable[[Session], T], keep: Callable[[T], R]) -> R:
        """What `keep` makes of what `work` returns.

        `work` runs in a thread that may be left behind, so it changes nothing but its session; `keep` runs in
        the caller's, before the next piece of work. Raises Hung, DriverUnavailable, and what `work` raises
        other than libvirtError.
        """
        if not self._turn.acquire(timeout=self._turn_timeout_s):
            raise DriverUnavailable(f"libvirt is still busy with an earlier question ({what})")
        try:
            if self._closed:
                raise DriverUnavailable("the libvirt driver was closed")
            return keep(self._run(what, work))
        finally:
            self._turn.release()

    def _run(self, what: str, work: Callable[[Session], T]) -> T:
        if self._session is not None and self._broken.is_set():
            self._drop(self._session)
        session = self._session or Session(Beat(0))
        hung = False
        try:
            return self._runner.run(what, lambda beat: self._on(session, beat, work), session.close)
        except libvirt.libvirtError as error:
            if session.usable:
                raise DriverUnavailable(f"libvirt did not answer ({what}): {error}") from error
            raise DriverUnavailable(
                f"no connection to libvirt at {self._uri}: {error}; is libvirtd running, and may this user "
                "read its socket?"
            ) from error
        except Hung:
            hung = True
            raise
        finally:
            self._settle(session, hung)

    def _on(self, session: Session, beat: Beat, work: Callable[[Session], T]) -> T:
        """In the runner's thread, which touches nothing but the session: its caller may be gone."""
        session.beat = beat
        try:
            if not session.usable:
                self._broken.clear()
                session.open(self._uri, self._hints, self._why, self._connection_lost)
            return work(session)
        except libvirt.libvirtError:
            if not session.alive():
                session.close()
            raise

    def _settle(self, session: Session, hung: bool) -> None:
        """In the caller's thread: keep a session that is new and well, let go of one that is not."""
        new = session is not self._session
        self._tries += new
        if hung or not session.usable:
            session.given_up = True
            self._session = None
            self._lost("the connection to libvirt was lost")
        elif new:
            self._session = session
            self._opened(self._tries > 1)

    def _connection_lost(self, why: str) -> None:
        """From the event loop's thread: the next piece of work opens a new session."""
        self._broken.set()
        self._lost(why)

    def _drop(self, session: Session) -> None:
        """Close a session that libvirt itself has reported as closed."""
        self._session = None
        session.given_up = True
        self._runner.run("close a broken connection", lambda beat: session.close())

    def close(self) -> None:
        """Idempotent. A daemon that hangs is left alone."""
        self._closed = True
        if not self._turn.acquire(timeout=self._runner.call_timeout_s):
            LOG.warning("a question to libvirt is still open, the connection is left to it")
            return
        try:
            session, self._session = self._session, None
            if session is not None:
                session.given_up = True
                self._runner.run("close the connection", lambda beat: session.close())
        except DriverUnavailable as error:
            LOG.warning("%s", error)
        finally:
            self._turn.release()
