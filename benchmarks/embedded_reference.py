"""OpenStack Placement, in process, over a SQLite file: the other side of the comparison."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

from benchmarks.embedded_world import Ask


def load(folder: Path) -> Ask:
    """Start the service with its database in `folder`; answers the function that asks it."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from oslo_config import cfg
    from oslo_log import log
    from placement import conf, db_api, deploy
    from placement.db.sqlalchemy import models

    config = cfg.ConfigOpts()
    conf.register_opts(config)
    log.register_options(config)
    config.set_override("connection", f"sqlite:///{folder / 'reference.db'}", group="placement_database")
    config.set_override("auth_strategy", "noauth2", group="api")
    config([], project="placement", default_config_files=[], default_config_dirs=[])
    db_api.configure(config)
    models.BASE.metadata.create_all(db_api.get_placement_engine())
    application = deploy.loadapp(config)

    def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        text = b"" if body is None else json.dumps(body).encode()
        bare, _, query = path.partition("?")
        environ = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": bare,
            "QUERY_STRING": query,
            "SERVER_NAME": "localhost",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "CONTENT_LENGTH": str(len(text)),
            "CONTENT_TYPE": "application/json",
            "HTTP_X_AUTH_TOKEN": "admin",
            "HTTP_X_ROLES": "admin,service",
            "HTTP_OPENSTACK_API_VERSION": "placement 1.39",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(text),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        started: list[str] = []
        parts = application(environ, lambda status, headers, exc_info=None: started.append(status))
        answer = b"".join(parts)
        return int(started[-1].split()[0]), json.loads(answer) if answer[:1] in (b"{", b"[") else None

    return ask
