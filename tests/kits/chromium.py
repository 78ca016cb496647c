"""Debian's headless Chromium, driven by its chromedriver over the WebDriver protocol.

Source: https://www.w3.org/TR/webdriver2/. Selenium would be fifteen packages for what is eight requests here.
"""

import base64
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

CHROMEDRIVER = "/usr/bin/chromedriver"
PATIENCE_S = 60.0
ARGUMENTS = (
    "--headless",
    "--no-sandbox",  # it runs as root in containers, and sees only our own page
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


class Browser:
    """One window."""

    def __init__(self, base: str, options: Mapping[str, Any]) -> None:
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = _ask(f"{base}/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"{base}/session/{made['sessionId']}"

    def open(self, url: str) -> None:
        _ask(f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What the script returns, in the page; the page's own policy does not hold for it."""
        return _ask(f"{self._session}/execute/sync", {"script": script, "args": []})

    def complaints(self) -> list[str]:
        """What the browser wrote to its console."""
        return [each["message"] for each in _ask(f"{self._session}/se/log", {"type": "browser"})]

    def emulate(self, feature: str, value: str) -> None:
        """A media feature, such as prefers-color-scheme."""
        features = [{"name": feature, "value": value}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def picture(self) -> bytes:
        """A PNG of what is to be seen."""
        return base64.b64decode(_ask(f"{self._session}/screenshot"))

    def close(self) -> None:
        _ask(self._session, method="DELETE")

    def _devtools(self, command: str, parameters: Mapping[str, Any]) -> None:
        _ask(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A fresh one; `arguments` are of its command line."""
    with tempfile.TemporaryDirectory() as profile, _driver() as base:
        opened = Browser(base, {"args": [*ARGUMENTS, f"--user-data-dir={profile}", *arguments]})
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def _driver() -> Iterator[str]:
    """chromedriver in a process group of its own, at a port that it chooses itself."""
    process = subprocess.Popen(
        [CHROMEDRIVER, "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    watchdog = threading.Timer(4 * PATIENCE_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        ports = (re.search(r"successfully on port (\d+)", line) for line in process.stdout)
        port = next(int(found[1]) for found in ports if found)
        yield f"http://127.0.0.1:{port}"
    finally:
        watchdog.cancel()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


def _ask(url: str, body: Any = None, method: str = "") -> Any:
    sent = None if body is None else json.dumps(body).encode()
    asked = Request(
        url, sent, {"Content-Type": "application/json"}, method=method or ("POST" if sent else "GET")
    )
    try:
        with urlopen(asked, timeout=PATIENCE_S) as reply:
            return json.load(reply)["value"]
    except HTTPError as error:
        with error:
            raise AssertionError(f"{asked.method} {url}: {json.load(error)['value']['message']}") from None


def save(picture: bytes, name: str) -> None:
    """Into the directory $PLIMSOLL_SCREENSHOTS, if there is one."""
    directory = os.environ.get("PLIMSOLL_SCREENSHOTS")
    assert picture.startswith(b"\x89PNG")
    if directory:
        Path(directory, name).write_bytes(picture)
