"""Placement API calls over HTTP to an OpenStack Placement, authenticated by keystoneauth.

Options are keystoneauth's, named as in nova's [placement] group. No write is sent twice: whether one
whose answer was lost took effect is for the caller to read. Source: https://docs.openstack.org/keystoneauth/.
"""

import logging
from collections.abc import Mapping
from typing import Any

import requests
import urllib3
from keystoneauth1 import exceptions, loading
from keystoneauth1.adapter import Adapter
from keystoneauth1.plugin import BaseAuthPlugin
from keystoneauth1.session import Session, TCPKeepAliveAdapter

from agent.errors import PlacementError, PlacementUnavailable, SettingsError
from agent.placement.replies import TOO_MANY_REQUESTS, retry_after_s
from agent.placement.transport import Reply

CONNECT_TIMEOUT_MAX_S = 5.0
DEFAULT_TIMEOUT_S = 15.0
CONNECTIONS_MAX = 32

_SERVICE_TYPE = "placement"
_INTERFACES = ("internal", "public")

# Where nothing writes a log, as in a command, its warnings would stand beside our own sentence.
logging.getLogger("keystoneauth").addHandler(logging.NullHandler())


class HttpTransport:
    """A transport over one keystoneauth adapter; requests may be sent from any thread.

    Token and catalog are fetched with the first request, the token again when it is refused. Each wait for
    a connection ends after CONNECT_TIMEOUT_MAX_S, each wait for an answer after `timeout_s`.
    """

    def __init__(self, adapter: Adapter, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._adapter = adapter
        self._timeout_s = (min(timeout_s, CONNECT_TIMEOUT_MAX_S), timeout_s)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "HttpTransport":
        """A transport for {option: value} of the [placement] group; None means unset. Connects to nothing.

        `auth_type` is a keystoneauth plugin: password, v3applicationcredential, admin_token, none or another.
        Raises SettingsError for options that cannot work together.
        """
        given = {name: value for name, value in options.items() if value is not None}
        timeout_s = float(given.get("timeout", DEFAULT_TIMEOUT_S))
        wire = requests.Session()
        for scheme in ("http://", "https://"):
            wire.mount(scheme, TCPKeepAliveAdapter(pool_maxsize=CONNECTIONS_MAX))
        session = Session(
            auth=_auth_plugin(given),
            session=wire,
            verify=False if given.get("insecure") else given.get("cafile", True),
            cert=(given["certfile"], given["keyfile"]) if "certfile" in given else None,
            timeout=timeout_s,
            app_name="plimsoll",
        )
        adapter = Adapter(
            session,
            service_type=_SERVICE_TYPE,
            region_name=given.get("region_name"),
            interface=list(given.get("valid_interfaces", _INTERFACES)),
            endpoint_override=given.get("endpoint_override"),
        )
        return cls(adapter, timeout_s=timeout_s)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request; a read whose connection was cut once more, on another connection.

        Raises PlacementUnavailable where placement or Keystone did not answer, PlacementError where Keystone
        refuses the credentials or its catalog has no placement.
        """
        try:
            try:
                answer = self._send(method, path, body, microversion)
            except exceptions.ConnectFailure as error:
                # A kept connection that the other side closes while idle breaks just as it is used again.
                if method != "GET" or not _was_cut(error):
                    raise
                answer = self._send(method, path, body, microversion)
        except (exceptions.ClientException, OSError) as error:
            raise _explained(error, f"{method} {path}") from error
        return Reply(answer.status_code, _parsed(answer), {n.lower(): v for n, v in answer.headers.items()})

    def _send(self, method: str, path: str, body: Any, microversion: str) -> requests.Response:
        answer: requests.Response = self._adapter.request(
            path,
            method,
            json=body,
            headers={"Accept": "application/json"},
            microversion=microversion,
            raise_exc=False,
            connect_retries=0,
            timeout=self._timeout_s,
        )
        return answer

    def where(self) -> str:
        """Placement's address, by Keystone's catalog or `endpoint_override`. Raises as `request` does."""
        try:
            found = self._adapter.get_endpoint()
        except (exceptions.ClientException, OSError) as error:
            raise _explained(error, "find its address") from error
        if not found:
            raise PlacementError(
                "Placement's address is not in Keystone's catalog: check region_name and valid_interfaces in "
                "[placement], or set endpoint_override."
            )
        return str(found)

    def who(self) -> str:
        """As whom the agent asks, in words. Raises as `request` does."""
        try:
            user, project = self._adapter.get_user_id(), self._adapter.get_project_id()
        except (exceptions.ClientException, OSError) as error:
            raise _explained(error, "say who asks") from error
        if user is None:
            return "whoever the token or the address stands for: Keystone was not asked"
        return f"user {user} in project {project}" if project else f"user {user}"

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._adapter.session.session.close()


def _auth_plugin(given: Mapping[str, Any]) -> BaseAuthPlugin:
    auth_type = given.get("auth_type", "password")
    values = dict(given)
    if "endpoint_override" in given:
        values.setdefault("endpoint", given["endpoint_override"])  # what plugins without a catalog call it
    try:
        loader: loading.BaseLoader[BaseAuthPlugin] = loading.get_plugin_loader(auth_type)
        known = {option.dest for option in loader.get_options()}
        if "applicationcredential" in auth_type:
            # It has a project of its own, and Keystone refuses one that is asked for beside it.
            known -= {name for name in known if name.startswith("project_")}
        return loader.load_from_options(**{name: value for name, value in values.items() if name in known})
    except exceptions.NoMatchingPlugin as error:
        names = ", ".join(sorted(loading.get_available_plugin_names()))
        raise SettingsError(
            f"[placement] auth_type = {auth_type} is not known; there are {names}.",
            group="placement",
            option="auth_type",
        ) from error
    except exceptions.MissingRequiredOptions as error:
        missing = [option.dest for option in error.options]
        raise SettingsError(
            f"[placement] auth_type = {auth_type} needs {' and '.join(missing)}.",
            group="placement",
            option=missing[0],
        ) from error


def _was_cut(error: exceptions.ConnectFailure) -> bool:
    """Whether there was a connection, and it broke before an answer came."""
    cause = error.__cause__ or error.__context__
    return isinstance(cause, requests.ConnectionError) and isinstance(
        next(iter(cause.args), None), urllib3.exceptions.ProtocolError
    )


def _explained(error: exceptions.ClientException | OSError, asked: str) -> PlacementError:
    """What went wrong before placement could answer, as ours."""
    reason = " ".join(str(error).split())
    match error:
        case OSError():  # what was not there when a connection was to be made; all else keystoneauth words
            return PlacementError(
                f"Placement could not be asked to {asked}: {reason}. "
                "Check cafile, certfile and keyfile in [placement]."
            )
        case exceptions.ConnectTimeout():  # for answers that are late, too
            return PlacementUnavailable(f"Placement did not answer to {asked} in time: {reason}.", busy=True)
        case exceptions.ConnectionError() | exceptions.DiscoveryFailure():
            return PlacementUnavailable(f"Placement did not answer to {asked}: {reason}.")
        case exceptions.HttpError() if error.http_status >= 500 or error.http_status == TOO_MANY_REQUESTS:
            seconds = None if error.response is None else retry_after_s(error.response.headers)
            told: dict[str, Any] = {} if seconds is None else {"retry_after": seconds}
            return PlacementUnavailable(
                f"Keystone could not vouch for the agent, so {asked} was not sent to placement: {reason}.",
                status=error.http_status,
                busy=True,
                **told,
            )
        case exceptions.HttpError():
            return PlacementError(
                f"Keystone does not accept the agent, so {asked} was not sent to placement: {reason}. "
                "Check the credentials and auth_url in [placement].",
                status=error.http_status,
            )
        case _:
            return PlacementError(
                f"Placement could not be found to {asked}: {reason}. "
                "Check region_name, valid_interfaces and endpoint_override in [placement]."
            )


def _parsed(answer: requests.Response) -> Any:
    """The body's JSON; None where there is none, as in the answer of a proxy."""
    if not answer.content:
        return None
    try:
        return answer.json()
    except requests.exceptions.JSONDecodeError:
        return None
