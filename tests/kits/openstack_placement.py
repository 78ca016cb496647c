"""A real OpenStack Placement over HTTP: `python -m kits.openstack_placement DATABASE_URL PORT TEST`.

It serves one test at a time, below /TEST. Prints "serving" once it does. A line on its standard input is an
order, which it repeats once it is carried out: "empty TEST" to forget everything and serve another one,
"close" and "open" for its door, "speak 1.N" to know no later microversion (PLIMSOLL_TEST_MICROVERSION: from
the start). It ends with its standard input. The token "admin" may do all, as Keystone's roles say it.
"""

import json
import logging
import os
import sys
import threading
from typing import Any

from cheroot.wsgi import Server
from oslo_config import cfg
from oslo_log import log
from placement import conf, db_api, deploy
from placement.db.sqlalchemy import models
from sqlalchemy import text

from kits.openstack_speed import spare_repeated_work

THREADS = 8
ENDS_WITHIN_S = 60.0
NEWEST = "1.39"
UNKNOWN = "placement 1.99"
MICROVERSION = "PLIMSOLL_TEST_MICROVERSION"
CUSTOM_ROWS = "DELETE FROM {} WHERE substr(name, 1, 7) = 'CUSTOM_'"


class Door:
    """The HTTP server; it can be closed, so that nobody answers at the port, and opened again."""

    def __init__(self, port: int, threads: int, inside: Any) -> None:
        self._address = ("127.0.0.1", port)
        self._threads = threads
        self._inside = inside
        self.open()

    def open(self) -> None:
        # A connection that is closed as idle just when it is used again looks like a fault to its client.
        self._server = Server(
            self._address, self._inside, numthreads=self._threads, request_queue_size=128, timeout=120
        )
        self._server.keep_alive_conn_limit = 256
        self._server.expiration_interval = 0.05
        self._server.prepare()
        self._serving = threading.Thread(target=self._server.serve, daemon=True)
        self._serving.start()

    def close(self) -> None:
        self._server.stop()
        self._serving.join()


def main() -> None:
    database, port, test = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    logging.getLogger("placement").setLevel(logging.CRITICAL)
    aged = Aged(application(database), os.environ.get(MICROVERSION, NEWEST))
    spare_repeated_work()
    one_test = OneTest(aged, test)
    door = Door(port, threads_for(database), one_test)
    orders = {
        "empty": one_test.begin,
        "close": door.close,
        "open": door.open,
        "speak": aged.speak,
        "generate": generate,
    }
    print("serving", flush=True)
    for line in sys.stdin:
        order, *words = line.split()
        orders[order](*words)
        print(line.strip(), flush=True)
    door.close()


def threads_for(database: str) -> int:
    """SQLite has one writer."""
    return 1 if database.startswith("sqlite") else THREADS


CONFIG = cfg.ConfigOpts()


def generate(order: str, most: str) -> None:
    """Make so many candidates at most, in that order of the trees."""
    CONFIG.set_override("allocation_candidates_generation_strategy", order, group="placement")
    CONFIG.set_override("max_allocation_candidates", int(most), group="placement")


def application(database: str) -> Any:
    config = CONFIG
    conf.register_opts(config)
    log.register_options(config)
    config.set_override("connection", database, group="placement_database")
    config.set_override("auth_strategy", "noauth2", group="api")
    config([], project="placement", default_config_files=[], default_config_dirs=[])
    db_api.configure(config)
    models.BASE.metadata.create_all(db_api.get_placement_engine())
    return with_roles(deploy.loadapp(config))


class OneTest:
    """The service of one test: who asks for another one, which has ended, is told so, and nothing is done.

    So what a test's client or a thread of it sends late never meets the providers of the next test.
    """

    def __init__(self, inner: Any, test: str) -> None:
        self._inner, self._test = inner, test
        self._under_way = 0
        self._turn = threading.Condition()

    def begin(self, test: str) -> None:
        """Wait for what is being answered, forget everything, and serve that test from now on."""
        with self._turn:
            self._test = ""
            if not self._turn.wait_for(lambda: not self._under_way, ENDS_WITHIN_S):
                raise TimeoutError(f"{self._under_way} requests have been under way for {ENDS_WITHIN_S:g} s")
            empty()
            self._test = test

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        test, slash, path = environ["PATH_INFO"].lstrip("/").partition("/")
        with self._turn:
            if test != self._test:
                start_response("410 Gone", [("Content-Length", "0")])
                return []
            self._under_way += 1
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = f"/{test}", slash + path
        try:
            return self._inner(environ, start_response)
        finally:
            with self._turn:
                self._under_way -= 1
                self._turn.notify_all()


class Aged:
    """The service as it was when `newest` was its newest microversion: it refuses later ones."""

    def __init__(self, inner: Any, newest: str) -> None:
        self._inner = inner
        self.speak(newest)

    def speak(self, newest: str) -> None:
        self._newest = newest

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        asked = environ.get("HTTP_OPENSTACK_API_VERSION", "")
        if "." in asked and _minor(asked) > _minor(self._newest):
            environ["HTTP_OPENSTACK_API_VERSION"] = UNKNOWN
        if environ["PATH_INFO"] not in ("", "/") or self._newest == NEWEST:
            return self._inner(environ, start_response)
        kept: list[tuple[str, str]] = []

        def keep(_status: str, headers: list[tuple[str, str]], _error: Any = None) -> None:
            kept.extend(header for header in headers if header[0].lower() != "content-length")

        said = json.loads(b"".join(self._inner(environ, keep)))
        said["versions"][0]["max_version"] = self._newest
        body = json.dumps(said).encode()
        start_response("200 OK", [*kept, ("Content-Length", str(len(body)))])
        return [body]


def _minor(version: str) -> int:
    return int(version.rpartition(".")[2])


def with_roles(inner: Any) -> Any:
    """What Keystone's middleware would add; reshaping needs the role service."""

    def outer(environ: dict[str, Any], start_response: Any) -> Any:
        if environ.get("HTTP_X_AUTH_TOKEN") == "admin":
            environ["HTTP_X_ROLES"] = "admin,service"
        return inner(environ, start_response)

    return outer


def empty() -> None:
    """All but the standard resource classes and traits."""
    with db_api.get_placement_engine().begin() as connection:
        for table in reversed(models.BASE.metadata.sorted_tables):
            if table.name in ("traits", "resource_classes"):
                connection.execute(text(CUSTOM_ROWS.format(table.name)))
            elif table.name == "resource_providers":
                connection.execute(table.update().values(parent_provider_id=None, root_provider_id=None))
                connection.execute(table.delete())
            else:
                connection.execute(table.delete())


if __name__ == "__main__":
    main()
