"""A real OpenStack Placement over HTTP: `python openstack_placement.py DATABASE_FILE PORT`.

Prints its port once it serves and ends with its standard input. One worker thread, as SQLite has one writer.
Tokens are those of placement's noauth2: "admin" may do all.
"""

import logging
import sys
import threading

from cheroot.wsgi import Server
from oslo_config import cfg
from oslo_log import log
from placement import conf, db_api, deploy
from placement.db.sqlalchemy import models


def main() -> None:
    database, port = sys.argv[1], int(sys.argv[2])
    logging.getLogger("placement").setLevel(logging.CRITICAL)
    config = cfg.ConfigOpts()
    conf.register_opts(config)
    log.register_options(config)
    config.set_override("connection", f"sqlite:///{database}", group="placement_database")
    config.set_override("auth_strategy", "noauth2", group="api")
    config([], project="placement", default_config_files=[], default_config_dirs=[])
    db_api.configure(config)
    models.BASE.metadata.create_all(db_api.get_placement_engine())
    server = Server(("127.0.0.1", port), deploy.loadapp(config), numthreads=1)
    server.prepare()
    threading.Thread(target=server.serve, daemon=True).start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
