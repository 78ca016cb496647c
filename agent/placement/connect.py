"""The one place that knows where placement is: in this process, or at the other end of a wire."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.errors import SettingsError, StateError
from agent.placement.transport import Transport


def open_transport(
    kind: str, *, state_dir: Path | None = None, options: Mapping[str, Any] | None = None
) -> Transport:
    """The transport for `kind`: "embedded", over the database in `state_dir`, or "remote", with the options
    of the settings' [placement] group. Each loads its libraries only when it is chosen.

    Raises SettingsError for another kind or options that make no sense, StateError where the embedded core's
    database cannot be used. The remote does not connect yet.
    """
    match kind:
        case "embedded":
            if state_dir is None:
                raise SettingsError("The embedded placement needs a state directory: set state_path.")
            return _embedded(state_dir)
        case "remote":
            from agent.placement.http_transport import HttpTransport

            return HttpTransport.from_options(options or {})
        case _:
            raise SettingsError(f"Placement is 'embedded' or 'remote', not {kind!r}.")


def _embedded(state_dir: Path) -> Transport:
    from agent.placement.embedded.core import Core
    from agent.placement.embedded.sqliteerrors import DatabaseError
    from agent.placement.embedded_transport import EmbeddedTransport

    try:
        return EmbeddedTransport(Core.open(state_dir))
    except DatabaseError as error:
        raise StateError(str(error), path=str(error.path)) from error
