"""Opens the transport to the configured Placement: the embedded core, or an OpenStack Placement over HTTP.

Each transport's libraries are imported only when it is opened.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.errors import SettingsError, StateError
from agent.placement.transport import Transport


def open_transport(
    kind: str, *, state_dir: Path | None = None, options: Mapping[str, Any] | None = None
) -> Transport:
    """The transport for `kind`: "embedded", over the database in `state_dir`, or "remote".

    `options` are those of the [placement] group. The embedded core is served at the addresses in the option
    `serve` until the transport is closed. A remote transport connects with its first request.
    Raises SettingsError for another kind and for unusable options, StateError where the database of the
    embedded core cannot be used.
    """
    match kind:
        case "embedded":
            if state_dir is None:
                raise SettingsError("The embedded Placement needs a state directory: set state_path.")
            return _embedded(state_dir, options or {})
        case "remote":
            from agent.placement.transport_http import HttpTransport

            return HttpTransport.from_options(options or {})
        case _:
            raise SettingsError(f"[placement] kind must be 'embedded' or 'remote', not {kind!r}.")


def check_options(kind: str, options: Mapping[str, Any], to_be_made: Path | None = None) -> None:
    """Check the options of the [placement] group as `open_transport` does; connect nowhere, open no database.

    A directory `to_be_made` may be missing: its sockets are made after it. Raises SettingsError.
    """
    if kind == "remote":
        open_transport(kind, options=options).close()
    elif options.get("serve"):
        from agent.placement.embedded.http.auth import ServeError

        try:
            _server(None, options).check_places(to_be_made)
        except ServeError as error:
            raise _not_served(error) from error


def _embedded(state_dir: Path, options: Mapping[str, Any]) -> Transport:
    from agent.durable.errors import DatabaseError
    from agent.placement.embedded.core import Core
    from agent.placement.transport_embedded import EmbeddedTransport

    try:
        core = Core.open(state_dir)
    except DatabaseError as error:
        raise StateError(str(error), path=str(error.path)) from error
    if not options.get("serve"):
        return EmbeddedTransport(core)
    try:
        return EmbeddedTransport(core, _start_server(core, options))
    except BaseException:
        core.close()
        raise


def _start_server(core: Any, options: Mapping[str, Any]) -> Any:
    from agent.placement.embedded.http.auth import ServeError

    server = _server(core, options)
    try:
        server.start()
    except ServeError as error:
        raise _not_served(error) from error
    return server


def _server(core: Any, options: Mapping[str, Any]) -> Any:
    """The server, which listens nowhere yet. Raises SettingsError."""
    from agent.placement.embedded.http.auth import ServeError
    from agent.placement.embedded.http.serve import Server

    def file(option: str) -> Path | None:
        return Path(options[option]) if options.get(option) else None

    try:
        return Server(
            core,
            options["serve"],
            tokens_file=file("serve_tokens"),
            tls_cert=file("serve_tls_cert"),
            tls_key=file("serve_tls_key"),
        )
    except ServeError as error:
        raise _not_served(error) from error


def _not_served(error: Exception) -> SettingsError:
    return SettingsError(f"[placement] serve: {error}", group="placement", option="serve")
