"""The process at the other end of a Unix socket, as the kernel knows it (SO_PEERCRED, unix(7))."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class PeerCredentials(NamedTuple):
    """The ids of a client's process when it connected."""

    uid: int
    gid: int
    pid: int


def peer_credentials(environ: Mapping[str, Any]) -> PeerCredentials | None:
    """The caller of a WSGI request, None if the kernel did not tell.

    cheroot writes these variables from SO_PEERCRED; a client's header would arrive as HTTP_X_REMOTE_UID.
    """
    try:
        return PeerCredentials(*(int(environ[f"X_REMOTE_{name}"]) for name in ("UID", "GID", "PID")))
    except KeyError:
        return None
