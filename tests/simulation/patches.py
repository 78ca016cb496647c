"""The agent's modules on the simulator's clock, locks, dice and uuids.

Modules keep `threading` and `time` as globals, and clocks as defaults of parameters. Both are found once and
exchanged while a world runs.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import agent
import drivers.fake
from simulation import tasks

LEFT_ALONE = (
    "agent.api.server",
    "agent.cli",
    "agent.daemon.service",
    "agent.doctor",
    "agent.durable",
    "agent.http",
    "agent.placement.embedded",
    "agent.systemd",
)
JOURNAL_SLACK_BYTES = 500
"""So that the journal of a served core is full soon, and rows are swept."""
NEEDED = ("agent.daemon.host_agent", "agent.placement.embedded.core", "drivers.fake.driver")


def _module(real: ModuleType, **changed: Any) -> ModuleType:
    module = ModuleType(real.__name__)
    module.__dict__.update(vars(real))
    module.__dict__.update(changed)
    return module


def new_uuid() -> uuid.UUID:
    """uuid.uuid4"""
    assert tasks.active is not None
    return uuid.UUID(int=tasks.active.names.getrandbits(128), version=4)


def _true_clock() -> float:
    """time.monotonic of a machine that no history suspends."""
    assert tasks.active is not None
    return tasks.active.now


class _Dice:
    """random.SystemRandom; draws for the schedule."""

    @staticmethod
    def uniform(low: float, high: float) -> float:
        assert tasks.active is not None
        return tasks.active.dice.uniform(low, high)

    @staticmethod
    def random() -> float:
        assert tasks.active is not None
        return tasks.active.dice.random()

    @staticmethod
    def choice(choices: Any) -> Any:
        assert tasks.active is not None
        return tasks.active.dice.choice(choices)

    @staticmethod
    def randrange(*bounds: int) -> int:
        assert tasks.active is not None
        return tasks.active.dice.randrange(*bounds)


_TIME = _module(
    time,
    time=tasks.wall_clock,
    monotonic=tasks.steady_clock,
    perf_counter=tasks.steady_clock,
    sleep=tasks.sleep,
)
_UUID = _module(uuid, uuid4=new_uuid)
_DICE = _Dice()
_CALLS = {
    time.time: tasks.wall_clock,
    time.monotonic: tasks.steady_clock,
    time.perf_counter: tasks.steady_clock,
    time.sleep: tasks.sleep,
    uuid.uuid4: new_uuid,
    threading.Lock: tasks.Lock,
    threading.RLock: tasks.RLock,
    threading.Condition: tasks.Condition,
    threading.Event: tasks.Event,
}
_found: list[tuple[Any, str, Any, Any]] = []


def _replacement(value: Any) -> Any:
    if value is threading:
        return tasks.Threading
    if value is time:
        return _TIME
    if value is uuid:
        return _UUID
    if isinstance(value, random.SystemRandom):
        return _DICE
    owner = getattr(value, "__self__", None)
    if isinstance(owner, random.SystemRandom):
        return getattr(_DICE, value.__name__)
    try:
        return _CALLS.get(value)
    except TypeError:
        return None


def _find() -> None:
    for package in (agent, drivers.fake):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(("agent.cli", "agent.doctor")):
                importlib.import_module(module.name)
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("agent.", "drivers.")) and not name.startswith(LEFT_ALONE):
            for key, value in list(vars(module).items()):
                _look_at(module, key, value, name)
    messages = importlib.import_module("agent.placement.embedded.handlers")
    _found.append((messages, "uuid", uuid, _UUID))
    store = importlib.import_module("agent.placement.embedded.store")
    _found.append((store, "time", time, _module(time, monotonic=_true_clock)))
    _found.append((store, "SLACK_BYTES", store.SLACK_BYTES, JOURNAL_SLACK_BYTES))


def _look_at(holder: Any, key: str, value: Any, module: str) -> None:
    exchanged = _replacement(value)
    if exchanged is not None:
        _found.append((holder, key, value, exchanged))
    elif isinstance(value, FunctionType) and value.__module__ == module:
        _look_at_defaults(value)
    elif isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if isinstance(function, FunctionType):
                _look_at_defaults(function)


def _look_at_defaults(function: FunctionType) -> None:
    given, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    if any(_replacement(value) is not None for value in given):
        changed = tuple(_replacement(value) or value for value in given)
        _found.append((function, "__defaults__", given, changed))
    if any(_replacement(value) is not None for value in named.values()):
        changed_named = {key: _replacement(value) or value for key, value in named.items()}
        _found.append((function, "__kwdefaults__", dict(named), changed_named))


@contextlib.contextmanager
def simulated(scheduler: tasks.Scheduler) -> Iterator[None]:
    """Run the block with the agent on this scheduler's clock. Nothing may run beside it."""
    if not _found:
        _find()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    tasks.use(scheduler)
    for holder, key, _, changed in _found:
        setattr(holder, key, changed)
    try:
        yield
    finally:
        scheduler.end()
        for holder, key, value, _ in _found:
            setattr(holder, key, value)
        tasks.use(None)
        logging.disable(level)
