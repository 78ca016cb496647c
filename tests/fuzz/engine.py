"""Makes the calls that schemathesis thinks of, and judges each answer."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from werkzeug.test import Client

PER_ROUND = 100
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE, GenerationMode.POSITIVE)
UNAVAILABLE = 503


class Api(Protocol):
    """`state` is all that a call might change, as one value that can be compared."""

    document: dict[str, Any]

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]: ...

    def headers(self) -> dict[str, str]: ...

    def state(self) -> object: ...

    def freshen(self, case: Any) -> None:
        """Put into a case what exists, now and then: a made-up uuid alone hits nothing."""

    def close(self) -> None: ...


@dataclass
class Tally:
    calls: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def fuzz(api: Api, calls: int, seed: int) -> Tally:
    """Rounds over all operations until there were so many calls."""
    tally = Tally()
    schema = schemathesis.openapi.from_dict(api.document)
    operations = [result.ok() for result in schema.get_all_operations()]
    client = Client(api.app)
    turn = 0
    try:
        while tally.calls < calls:
            for operation in operations:
                mode = MODES[turn % len(MODES)]
                _one_operation(api, client, operation.as_strategy(mode), seed + turn, tally)
                turn += 1
                if tally.calls >= calls:
                    break
    finally:
        api.close()
    return tally


def _one_operation(api: Api, client: Client, cases: Any, seed: int, tally: Tally) -> None:
    @seeded(seed)
    @settings(
        max_examples=PER_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def run(case: Any) -> None:
        api.freshen(case)
        _judge(api, client, case, tally)

    with suppress(Unsatisfiable):  # nothing can be wrong with a call that takes nothing
        run()


def _judge(api: Api, client: Client, case: Any, tally: Tally) -> None:
    before = api.state()
    arguments = case.as_transport_kwargs(base_url="http://localhost")
    headers = {
        name: str(value) for name, value in {**(arguments.get("headers") or {}), **api.headers()}.items()
    }
    response = client.open(
        path=case.formatted_path.replace("?", "%3F"),
        method=case.method,
        query_string=arguments.get("params") or {},
        headers=[(name, _header(value)) for name, value in headers.items()],
        **_body(arguments),
    )
    tally.calls += 1
    tally.statuses[response.status_code] += 1
    told = f"{case.method} {case.formatted_path} {arguments.get('params')} {str(_body(arguments))[:300]}"
    if response.status_code >= 500 and response.status_code != UNAVAILABLE:
        tally.problems.append(f"{response.status_code}: {told}: {response.text[:300]}")
    elif response.status_code >= 400 and api.state() != before:
        tally.problems.append(f"changed by a {response.status_code}: {told}")


def _header(value: str) -> str:
    return value.encode("latin-1", "replace").decode("latin-1").replace("\n", " ").replace("\r", " ")


def _body(arguments: dict[str, Any]) -> dict[str, Any]:
    if "json" in arguments:
        return {"json": arguments["json"]}
    if arguments.get("data") is not None:
        return {"data": arguments["data"]}
    return {}
