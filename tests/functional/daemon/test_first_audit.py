"""The service in this process: its first audit comes within a minute, and no reload is lost."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.agent import told
from kits.api_client import ask
from kits.cli_process import output_of
from kits.daemon_process import eventually
from kits.placements import Embedded

from agent.daemon import service
from agent.daemon.service import Service
from agent.systemd.notify import Notifier

FIVE_MINUTES_S = 300.0


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The service sets handlers of its own."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Slowest:
    """Dice that always throw the longest delay."""

    def uniform(self, _: float, most: float) -> float:
        return most


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    settings = told(tmp_path, Embedded(tmp_path), f"[api]\nsocket = {tmp_path / 's'}\n")
    assert settings.audit_interval_s > FIVE_MINUTES_S, "else the schedule alone would pass"
    monkeypatch.setattr("agent.daemon.service._DICE", Slowest())
    return Service(settings, [tmp_path / "plimsoll.conf"], [], Notifier({}))


def test_the_first_audit_is_planned_within_a_minute(
    own: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_DICE", Slowest())
    begun = time.time()
    with own:
        planned = own._jobs._scheduler.get_job(service.AUDIT).next_run_time.timestamp()
        assert "findings   not audited yet" in output_of(tmp_path / "s", "status")
    assert begun < planned <= begun + 60


def test_the_service_runs_that_audit_without_a_request(
    own: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delay alone is shortened."""
    monkeypatch.setattr(service, "FIRST_AUDIT_S", (0.1, 0.1))
    path = tmp_path / "s"
    with own:
        eventually("the first audit", lambda: ask(path, "GET", "/v1/status").body["audited"], 20)
        assert "findings   none, audited " in output_of(path, "status")


def test_a_reload_that_came_before_the_service_is_done_by_it(
    own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloads: list[bool] = []

    def reload(service: Service) -> None:
        reloads.append(True)
        service._stop = True

    monkeypatch.setattr(Service, "_reload_settings", reload)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # as agent.cli.main does
    signal.raise_signal(signal.SIGHUP)
    with own as service_:
        service_.serve()
    assert reloads == [True]
