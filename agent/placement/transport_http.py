"""Placement API requests over HTTP to an OpenStack Placement, authenticated by keystoneauth.

The options are keystoneauth's, named as in nova's [placement] group. A write is never sent twice to a server
that would do it twice: if its answer is lost, the caller reads whether it took effect. Source:
https://docs.openstack.org/keystoneauth/.

`endpoint_override` may name several servers of one Placement, of which one is active: a request that a server
certainly did not do goes on to another one. Each write has an Idempotency-Key. Servers that share a journal,
and so the keys in it, say so (KEYS_HEADER): there a write whose answer is lost is repeated with its key, and
answered with what became of it.
"""

import logging
import ssl
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from textwrap import shorten
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import requests
import urllib3
from keystoneauth1 import exceptions, loading
from keystoneauth1.access import AccessInfo
from keystoneauth1.access.access import STALE_TOKEN_DURATION
from keystoneauth1.adapter import Adapter
from keystoneauth1.identity.base import BaseIdentityPlugin
from keystoneauth1.plugin import BaseAuthPlugin
from keystoneauth1.session import Session, TCPKeepAliveAdapter

from agent.errors import PlacementError, PlacementUnavailable, SettingsError, first_few
from agent.placement.transport import (
    ACTIVE_HEADER,
    STALE_HEADER,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED,
    UNAVAILABLE,
    Reply,
    addresses_of,
    error_of_reply,
    parse_body,
    reply_of_answer,
    retry_after_s,
)

CONNECT_TIMEOUT_MAX_S = 5.0
DEFAULT_TIMEOUT_S = 15.0
CONNECTIONS_MAX = 32
FORBIDDEN = 403
KEY_FORGOTTEN = 412
OF_NO_COPY = (FORBIDDEN, KEY_FORGOTTEN)
"""Answers to a repeated write that do not tell what became of its first copy."""

_WRAPPED_MAX = 16
_SERVICE_TYPE = "placement"
_INTERFACES = ("internal", "public")

# Commands configure no log. Without a handler, Python prints keystoneauth's warnings to stderr, beside
# the sentence of our own error.
logging.getLogger("keystoneauth").addHandler(logging.NullHandler())


class Retries(NamedTuple):
    """How often a read is repeated: if no connection is made, and if the answer is 503."""

    connect: int = 0
    status_code: int = 0


NO_RETRIES = Retries()

TAKEOVER_S = 3.0
"""How long a request waits for one of several servers to be active, if one answers that none is."""
TAKEOVER_PAUSE_S = 0.2
KEYS_HEADER = "plimsoll-keys"
"""For how many seconds a server, and those that share its journal, know the key of a write."""
SEEN_HEADER = "plimsoll-seen"
"""What a key says that is made now, so that the server knows a copy that is older than the keys it knows."""
PATIENCE_S = 2.0
"""How long one of several servers that share a journal may be silent until another one is asked. A takeover
takes 1.1 s. It doubles each time, so that a server that is merely slow is asked a few times only."""
REASON_MAX = 240
ADDRESSES_TOLD_MAX = 5


class _RefusedThere(PlacementError):
    """The server at that address does not let the agent in; another one may."""

    sent = False


class HttpTransport:
    """A transport over one keystoneauth adapter; requests may be sent from any thread.

    The first request fetches the token and the catalog; a rejected token is fetched again. A wait for a
    connection ends after CONNECT_TIMEOUT_MAX_S, a wait for an answer after `timeout_s`, both in seconds.
    The `addresses` are those of the servers of one Placement; by default the adapter knows the only one.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: Retries = NO_RETRIES,
        addresses: Sequence[str] = (),
    ) -> None:
        self._adapter = adapter
        self._retries = retries
        self._addresses = tuple(addresses) or (adapter.endpoint_override,)
        self._used = self._addresses[0]
        """The address that a request is sent to first: the one that answered last."""
        self._timeout_s = timeout_s
        self._kept_s = 0.0
        """For how long the servers know a key, as far as they have said."""
        self._seen = ""
        """The end of a new key."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "HttpTransport":
        """A transport for {option: value} of the [placement] group; None means unset. Does not connect.

        `auth_type` is a keystoneauth plugin: password, v3applicationcredential, admin_token, none or another.
        Raises SettingsError for options that do not work together.
        """
        values = {name: value for name, value in options.items() if value is not None}
        timeout_s = float(values.get("timeout", DEFAULT_TIMEOUT_S))
        addresses = addresses_of(values.get("endpoint_override"))
        session = Session(
            auth=_auth_plugin(values),
            session=_connections(values),
            verify=False if values.get("insecure") else values.get("cafile", True),
            cert=(values["certfile"], values["keyfile"]) if "certfile" in values else None,
            timeout=timeout_s,
            app_name="plimsoll",
            split_loggers=values.get("split_loggers"),
        )
        adapter = Adapter(
            session,
            service_type=values.get("service_type", _SERVICE_TYPE),
            region_name=values.get("region_name"),
            interface=list(values.get("valid_interfaces", _INTERFACES)),
            service_name=values.get("service_name"),
            endpoint_override=addresses[0] if addresses else None,
            connect_retry_delay=values.get("connect_retry_delay"),
            status_code_retry_delay=values.get("status_code_retry_delay"),
            retriable_status_codes=list(values.get("retriable_status_codes", ())) or None,
        )
        retries = Retries(values.get("connect_retries", 0), values.get("status_code_retries", 0))
        return cls(adapter, timeout_s=timeout_s, retries=retries, addresses=addresses)

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request. A GET whose connection broke is sent once more, on a new connection.

        With several addresses, what one server certainly did not do is sent to the active one, if that is
        named, and else to each of the others; again for TAKEOVER_S while one answers that none is active. So
        is what a server refused with a 401, or sends elsewhere.
        A write whose answer is lost is repeated in the same way, with its key, where the servers know keys:
        for TAKEOVER_S beside the time that servers were silent, and for `timeout_s` in all. One that was
        refused because its key was made long after the last answer is sent once more with a new one.

        Raises PlacementUnavailable where Placement itself or Keystone did not answer, PlacementError where
        Keystone rejects the credentials or its catalog has no Placement, or each server the token.
        """
        reply = self._send(method, path, body, microversion)
        return self._send(method, path, body, microversion) if reply.status == KEY_FORGOTTEN else reply

    def _send(self, *what: Any) -> Reply:
        """Send what `request` is asked for, a write with a new key, until a server answers. Raises as it."""
        method, path, *_ = what
        key = None if method == "GET" else uuid.uuid4().hex + self._seen
        if len(self._addresses) == 1:
            return self._request_at(self._used, self._timeout_s, key, *what)
        begun = time.monotonic()
        end, patience_s = begun + TAKEOVER_S, PATIENCE_S
        lost: PlacementUnavailable | _RefusedThere | None = None
        told: dict[str, str] = {}
        while True:
            first = self._addresses.index(self._used)
            left = [*self._addresses[first:], *self._addresses[:first]]
            failure: PlacementUnavailable | _RefusedThere | None = None
            standby: Reply | None = None
            while left:
                address, asked = left.pop(0), time.monotonic()
                last = begun + min(self._timeout_s, self._kept_s)
                rest_s = max(last - asked, TAKEOVER_PAUSE_S)
                wait_s = min(patience_s, rest_s) if self._kept_s else self._timeout_s
                try:
                    reply = self._request_at(address, wait_s, key, *what)
                except (PlacementUnavailable, _RefusedThere) as error:
                    reason = error.message.partition(": ")[2].partition(". ")[0]
                    reason = f"{address}: {reason.rstrip('.').removeprefix(f'{address}: ')}"
                    told[address] = shorten(reason, REASON_MAX, placeholder=" ...")
                    _tell_each(error, told)
                    self._used = left[0] if left else self._addresses[0]
                    failure = error if failure is None or isinstance(error, PlacementUnavailable) else failure
                    if error.sent and self._kept_s:
                        lost, patience_s = error, 2 * patience_s
                        end = min(end + time.monotonic() - asked, last)  # silence is not counted
                    elif error.sent and key is not None:
                        raise  # it may be done: it is sent again only when a read has told
                    continue
                # A write that was done is done, also where the server has another role by now.
                is_old = STALE_HEADER in reply.headers and (key is None or 400 <= reply.status < 500)
                # Nor does a server that does not let the caller write look for the key, or has forgotten it.
                is_old = is_old or (lost is not None and key is not None and reply.status in OF_NO_COPY)
                if reply.status != UNAVAILABLE and not is_old:
                    self._used = address
                    return reply
                standby = reply
                told.pop(address, None)
                active = reply.headers.get(ACTIVE_HEADER, "").rpartition("//")[2].partition("/")[0]
                left.sort(key=lambda one: urlsplit(one).netloc != active)
            if standby is None and failure is not None and lost is None:
                _tell_each(failure, told)
                raise failure
            if time.monotonic() > end:
                break
            time.sleep(TAKEOVER_PAUSE_S)
        if lost is not None and (key is not None or standby is None):
            _tell_each(lost, told)
            raise lost
        if standby is None or standby.status != UNAVAILABLE:
            raise PlacementUnavailable(
                f"Placement did not answer {method} {path.partition('?')[0]}: only a standby did, which may "
                "not know the newest writes. No server in endpoint_override answers as the active one."
                f"{_others(told)}",
                status=UNAVAILABLE,
                sent=False,
            )
        return _with_others(standby, told)

    def _request_at(
        self,
        address: str | None,
        wait_s: float,
        key: str | None,
        method: str,
        path: str,
        body: Any,
        microversion: str,
    ) -> Reply:
        """Send one request to that server, and wait so long for its answer. Raises as `request`."""

        def send() -> requests.Response:
            answer: requests.Response = self._adapter.request(
                path,
                method,
                endpoint_override=address,
                json=body,
                headers={"Accept": "application/json", **({} if key is None else {"Idempotency-Key": key})},
                microversion=microversion,
                raise_exc=False,
                redirect=False,  # another address gets no token
                connect_retries=self._retries.connect if key is None else 0,
                status_code_retries=self._retries.status_code if key is None else 0,
                timeout=(min(wait_s, CONNECT_TIMEOUT_MAX_S), wait_s),
                # The adapter's own waits until the wall clock says what it said at the start: for as long as
                # that was set back by.
                rate_semaphore=nullcontext(),
            )
            return answer

        try:
            try:
                answer = send()
            except exceptions.ConnectFailure as error:
                # The server closes idle connections; a request may reuse one that it is just closing.
                cause = error.__cause__ or error.__context__
                has_broken = isinstance(cause, requests.ConnectionError) and isinstance(
                    next(iter(cause.args), None), urllib3.exceptions.ProtocolError
                )
                if key is not None or not has_broken:
                    raise
                answer = send()
        except (exceptions.ClientException, OSError) as error:
            raise _placement_error(error, f"{method} {path.partition('?')[0]}") from error
        headers = {name.lower(): value for name, value in answer.headers.items()}
        if answer.is_redirect:
            raise _RefusedThere(
                f"Placement did not answer {method} {path.partition('?')[0]}: "
                f"{address or answer.url.partition('?')[0]}: it sends the agent on to {headers['location']}, "
                "which gets no token: set endpoint_override in [placement] to the address that answers "
                "itself.",
                status=answer.status_code,
            )
        if headers.get(KEYS_HEADER, "").isdecimal():
            self._kept_s = float(headers[KEYS_HEADER])
        if SEEN_HEADER in headers:
            self._seen = f"@{headers[SEEN_HEADER]}"
        reply = reply_of_answer(method, path, answer.status_code, parse_body(answer.content), headers)
        if reply.status == UNAUTHORIZED and len(self._addresses) > 1:
            refusal = error_of_reply(reply, f"answer {method} {path.partition('?')[0]}", full=False)
            raise _RefusedThere(refusal.message, status=UNAUTHORIZED)
        return reply

    def address(self) -> str:
        """Placement's URL, from Keystone's catalog or `endpoint_override`. Raises as `request` does.

        Of several addresses the one that answered last.
        """
        if self._used is not None:
            return self._used
        try:
            endpoint = self._adapter.get_endpoint()
        except (exceptions.ClientException, OSError) as error:
            raise _placement_error(error, "find its address") from error
        if not endpoint:
            raise PlacementError(
                "Placement's address is not in Keystone's catalog: check region_name and valid_interfaces in "
                "[placement], or set endpoint_override."
            )
        return str(endpoint)

    def identity(self) -> str:
        """The user and project of the agent's token, in words. Raises as `request` does."""
        try:
            user, project = self._adapter.get_user_id(), self._adapter.get_project_id()
        except (exceptions.ClientException, OSError) as error:
            raise _placement_error(error, "tell who asks") from error
        if user is None:
            return "the owner of the token or the address: Keystone was not asked"
        return f"user {user} in project {project}" if project else f"user {user}"

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        self._adapter.session.session.close()


def _connections(options: Mapping[str, Any]) -> requests.Session:
    connections = requests.Session()
    ciphers = options.get("tls_ciphers")
    try:
        for scheme in ("http://", "https://"):
            adapter = TCPKeepAliveAdapter(
                pool_maxsize=CONNECTIONS_MAX,
                tls_ciphers=ciphers,
                tls_min_version=options.get("tls_min_version"),
            )
            context = adapter.poolmanager.connection_pool_kw.get("ssl_context")
            if context is not None and options.get("insecure"):
                context.check_hostname = False  # else Python refuses to verify no certificate
            connections.mount(scheme, adapter)
    except ssl.SSLError as error:
        raise SettingsError(
            f"[placement] tls_ciphers = {ciphers} names no cipher that OpenSSL knows; `openssl ciphers -v` "
            "lists them.",
            group="placement",
            option="tls_ciphers",
            value=ciphers,
        ) from error
    return connections


_OTHER_SCOPES = ("domain_id", "domain_name", "trust_id", "system_scope")


def _auth_plugin(options: Mapping[str, Any]) -> BaseAuthPlugin:
    auth_type = options.get("auth_type", "password")
    values = dict(options)
    if "endpoint_override" in options:
        # The plugins without a catalog (admin_token, none) call it `endpoint`.
        values.setdefault("endpoint", next(iter(addresses_of(options["endpoint_override"])), None))
    try:
        loader: loading.BaseLoader[BaseAuthPlugin] = loading.get_plugin_loader(auth_type)
        known = {option.dest for option in loader.get_options()}
        if "applicationcredential" in auth_type:
            # The credential contains its project; Keystone rejects a request that names one too.
            known -= {name for name in known if name.startswith("project_")}
        if any(name in options for name in _OTHER_SCOPES):
            # A token is for one of these or for a project, which has a default.
            known -= {name for name in known if name.startswith("project_")}
        auth = loader.load_from_options(**{name: value for name, value in values.items() if name in known})
        return _with_steady_expiry(auth) if isinstance(auth, BaseIdentityPlugin) else auth
    except exceptions.NoMatchingPlugin as error:
        names = ", ".join(sorted(loading.get_available_plugin_names()))
        raise SettingsError(
            f"[placement] auth_type = {auth_type} is unknown; the known ones are {names}.",
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


def _with_steady_expiry(auth: BaseIdentityPlugin) -> BaseIdentityPlugin:
    """Use each token for as long as Keystone gave it, by the clock since boot, which no operator sets.

    keystoneauth compares the token's end with the wall clock: on a host whose clock is ahead, it would fetch
    a token for each request. A token that ended early is refused with a 401, upon which keystoneauth fetches
    another at once.
    """
    fetch = auth.get_auth_ref

    def get_auth_ref(session: Session, **options: Any) -> AccessInfo:
        fetched_at = _boot_time()
        access: AccessInfo = fetch(session, **options)
        try:
            expires, issued = access.expires, access.issued
        except KeyError:  # a token of the old API may have no issued_at
            return access
        if expires is not None and issued is not None:
            lasts_s = (expires - issued).total_seconds()

            def will_expire_soon(stale_duration: int = STALE_TOKEN_DURATION) -> bool:
                return _boot_time() - fetched_at > lasts_s - stale_duration

            access.will_expire_soon = will_expire_soon  # type: ignore[method-assign]
        return access

    auth.get_auth_ref = get_auth_ref  # type: ignore[method-assign]
    return auth


def _boot_time() -> float:
    """A monotonic clock that goes on while the host is suspended, as Keystone's does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _was_sent(error: BaseException | None) -> bool:
    """Whether Placement may have got the request: a connection existed, or nothing tells that none did.

    keystoneauth and requests wrap the error of urllib3, which knows.
    """
    unsent = (
        urllib3.exceptions.NewConnectionError,  # the connection was refused, or the name is not known
        urllib3.exceptions.ConnectTimeoutError,
        requests.exceptions.ConnectTimeout,
        ssl.SSLCertVerificationError,
        exceptions.DiscoveryFailure,
    )
    for _ in range(_WRAPPED_MAX):
        if error is None or isinstance(error, unsent):
            return error is None
        error = error.__cause__ or error.__context__ or _reason(error)
    return True


def _reason(error: BaseException) -> BaseException | None:
    """The error that one of urllib3's or requests' wraps as an argument."""
    inner = getattr(error, "reason", None) or next(iter(error.args), None)
    return inner if isinstance(inner, BaseException) else None


def _listed(told: Mapping[str, str]) -> str:
    return first_few([*told.values()], ADDRESSES_TOLD_MAX, "; ")


def _others(told: Mapping[str, str]) -> str:
    return f" Of the others: {_listed(told)}." if told else ""


def _with_others(reply: Reply, told: Mapping[str, str]) -> Reply:
    """The reply of a server that cannot work now, with the reasons of those that did not answer."""
    match reply.body:
        case {"errors": [{"detail": str(detail)} as error]}:
            return replace(reply, body={"errors": [{**error, "detail": f"{detail}{_others(told)}"}]})
    return reply


def _tell_each(error: PlacementError, told: Mapping[str, str]) -> None:
    """Let the error have the reason of each address that was asked, if they are several, and its remedy."""
    if len(told) > 1:
        what, _, reason = error.message.partition(": ")
        error.message = f"{what}: {_listed(told)}. {reason.partition('. ')[2]}".rstrip()
        error.args = (error.message,)


def _plain_reason(error: BaseException) -> str:
    """Why no answer arrived, in a clause; the address where it is known.

    keystoneauth, requests and urllib3 each wrap the cause into a longer sentence that repeats the others.
    """
    request = None
    link: BaseException | None = error
    for _ in range(_WRAPPED_MAX):
        if link is None:
            break
        request = request or getattr(link, "request", None)
        clause = ""  # what this link says, where it is the cause and no wrapper of it
        match link:
            case urllib3.exceptions.NameResolutionError():
                clause = "the name of the host is not known"
            case urllib3.exceptions.NewConnectionError():
                pass  # its cause says why
            case ssl.SSLCertVerificationError():
                clause = f"its certificate is not trusted: {link.verify_message}"
            case urllib3.exceptions.ConnectTimeoutError() | urllib3.exceptions.ReadTimeoutError():
                clause = "no answer in time"
            case OSError() if link.strerror and not isinstance(link, requests.RequestException):
                clause = link.strerror[0].lower() + link.strerror[1:]
        if clause:
            parts = urlsplit(getattr(request, "url", None) or "")
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: {clause}" if parts.netloc else clause
        link = link.__cause__ or link.__context__ or _reason(link)
    return " ".join(str(error).split()).rstrip(".")


def _placement_error(error: exceptions.ClientException | OSError, action: str) -> PlacementError:
    """The agent's error for one of keystoneauth's or requests', by which no answer of Placement arrived."""
    reason = _plain_reason(error)
    match error:
        case OSError():  # a certificate or key file is missing; keystoneauth converts all other OSErrors
            return PlacementError(
                f"Placement could not be asked to {action}: {reason}. "
                "Check cafile, certfile and keyfile in [placement]."
            )
        case exceptions.ConnectTimeout():  # keystoneauth raises it for late answers too
            return PlacementUnavailable(
                f"Placement did not answer to {action} in time: {reason}.", busy=True, sent=_was_sent(error)
            )
        case exceptions.ConnectionError() | exceptions.DiscoveryFailure():
            return PlacementUnavailable(
                f"Placement did not answer to {action}: {reason}.", sent=_was_sent(error)
            )
        case exceptions.HttpError() if error.http_status >= 500 or error.http_status == TOO_MANY_REQUESTS:
            seconds = None if error.response is None else retry_after_s(error.response.headers)
            details: dict[str, Any] = {} if seconds is None else {"retry_after": seconds}
            return PlacementUnavailable(
                f"Keystone did not authenticate the agent, so {action} was not sent to Placement: {reason}.",
                status=error.http_status,
                sent=False,
                busy=True,
                **details,
            )
        case exceptions.HttpError():
            return PlacementError(
                f"Keystone does not accept the agent, so {action} was not sent to Placement: {reason}. "
                "Check the credentials and auth_url in [placement].",
                status=error.http_status,
            )
        case _:
            return PlacementError(
                f"Placement could not be found to {action}: {reason}. "
                "Check region_name, valid_interfaces and endpoint_override in [placement]."
            )
