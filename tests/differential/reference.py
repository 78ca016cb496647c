"""The OpenStack Placement from PyPI, in process: its WSGI application over SQLite in memory."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from kits.openstack_speed import spare_repeated_work
from oslo_config import cfg
from sqlalchemy import text

from .exchange import Answer, Request
from .wsgi import ask_wsgi

with warnings.catch_warnings():
    # What the reference imports warns of its own future, which is no concern of these tests.
    warnings.simplefilter("ignore")
    from oslo_log import log
    from placement import conf, db_api, deploy
    from placement.db.sqlalchemy import models

GHOSTS = "no-invisible-consumers"
_CUSTOM_ROWS = "DELETE FROM {} WHERE substr(name, 1, 7) = 'CUSTOM_'"
_GHOST_CONSUMERS = "DELETE FROM consumers WHERE uuid NOT IN (SELECT consumer_id FROM allocations)"


class Reference:
    """OpenStack Placement, asked through its WSGI door with `noauth2` as admin.

    A new one starts empty. There is one at a time: the service keeps its database in a module global.
    """

    _application: Any = None

    def __init__(self) -> None:
        if Reference._application is None:
            Reference._application = _load()
        self._empty()

    def ask(self, request: Request) -> Answer:
        """Answer as OpenStack Placement does; consumers left without allocations are swept afterwards.

        The sweep keeps both sides comparable: an empty write leaves an invisible consumer here (`GHOSTS`).
        """
        answer = ask_wsgi(Reference._application, request)
        if request.method != "GET":
            with db_api.get_placement_engine().begin() as connection:
                connection.execute(text(_GHOST_CONSUMERS))
        return answer

    def _empty(self) -> None:
        """Empty every table but the standard resource classes and traits."""
        with db_api.get_placement_engine().begin() as connection:
            for table in reversed(models.BASE.metadata.sorted_tables):
                if table.name in ("traits", "resource_classes"):
                    connection.execute(text(_CUSTOM_ROWS.format(table.name)))
                else:
                    connection.execute(table.delete())


def _load() -> Any:
    # A refused claim is an everyday answer here, not something to print.
    logging.getLogger("placement").setLevel(logging.CRITICAL + 1)
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    log.register_options(config)
    config.set_override("connection", "sqlite://", group="placement_database")
    config.set_override("auth_strategy", "noauth2", group="api")
    config([], project="placement", default_config_files=[], default_config_dirs=[])
    db_api.configure(config)
    models.BASE.metadata.create_all(db_api.get_placement_engine())
    application = deploy.loadapp(config)
    spare_repeated_work()
    return application
