"""The one place that knows where placement is: in this process, or at the other end of a wire."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.errors import SettingsError, StateError
from agent.placement.transport import Transport


def open_transport(
    kind: str, *, state_dir: Path | None = None, options: Mapping[str, Any] | None = None
) -> Transport:
    """The transport for `kind`: "embedded", over the database in `state_dir`, or "remote"; `options` are
    those of the settings' [placement] group. Each loads its libraries only when it is chosen.

    The embedded core is served at the addresses in `serve` until the transport is closed; the remote does not
    connect yet. Raises SettingsError for another kind or options that make no sense, StateError where the
    embedded core's database cannot be used.
    """
    match kind:
        case "embedded":
            if state_dir is None:
                raise SettingsError("The embedded placement needs a state directory: set state_path.")
            return _embedded(state_dir, options or {})
        case "remote":
            from agent.placement.transport_http import HttpTransport

            return HttpTransport.from_options(options or {})
        case _:
            raise SettingsError(f"Placement is 'embedded' or 'remote', not {kind!r}.")


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
        return EmbeddedTransport(core, _served(core, options))
    except BaseException:
        core.close()
        raise


def _served(core: Any, options: Mapping[str, Any]) -> Any:
    from agent.placement.embedded.http.auth import ServeError
    from agent.placement.embedded.http.serve import Server

    def file(option: str) -> Path | None:
        return Path(options[option]) if options.get(option) else None

    try:
        server = Server(
            core,
            options["serve"],
            tokens_file=file("serve_tokens"),
            tls_cert=file("serve_tls_cert"),
            tls_key=file("serve_tls_key"),
        )
        server.start()
    except ServeError as error:
        raise SettingsError(f"[placement] serve: {error}", group="placement", option="serve") from error
    return server
