"""The agent's local API: a real agent on the fake driver and the embedded placement, without its process."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kits.agent import opened, told
from kits.placements import Embedded

from agent.api.routes import document
from agent.api.server import Api
from agent.config.access import Access

CLASSES = ("VCPU", "MEMORY_MB", "VGPU", "SRIOV_NET_VF")
UIDS = {"X_REMOTE_UID": "0", "X_REMOTE_GID": "0", "X_REMOTE_PID": "1"}


class LocalApi:
    def __init__(self, directory: Path) -> None:
        self._world = opened(told(directory, Embedded(directory)))
        self._world.agent.reconcile("the start")
        self._api = Api(self._world.operations, Access.parse((), (), ()))
        self._random = random.Random(1)
        self.document = document()

    def app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        return self._api({**environ, **UIDS}, start_response)

    def headers(self) -> dict[str, str]:
        return {}

    def state(self) -> object:
        tracker = self._world.agent._tracker
        return dict(tracker.claims()), dict(tracker.moves())

    def freshen(self, case: Any) -> None:
        tracker = self._world.agent._tracker
        for name, known in (("consumer", [*tracker.claims()]), ("migration", [*tracker.moves()])):
            if name in (case.path_parameters or {}) and known and self._random.random() < 0.5:
                case.path_parameters[name] = self._random.choice(known)
        if isinstance(case.body, dict) and "groups" in case.body and self._random.random() < 0.5:
            case.body["groups"] = [{"resources": {self._random.choice(CLASSES): self._random.randint(1, 4)}}]
            case.body.pop("flavor", None)

    def close(self) -> None:
        self._world.close()
