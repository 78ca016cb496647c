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
from contextlib import closing, contextmanager
from importlib.util import find_spec
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

HOSTILE = "<script>document.title='owned'</script><img src=/x onerror=\"document.title='owned'\">"
LOADED = "return performance.getEntriesByType('resource').map(each => each.name)"
OVERFLOWS = """
    const width = document.documentElement.clientWidth;
    return [...document.querySelectorAll('body *')]
        .filter(each => !each.closest('.vh,.skip') && each.getBoundingClientRect().right > width + 1)
        .map(each => each.tagName + '.' + each.className + ' ' + each.textContent.slice(0, 40));
"""
CONTRASTS = """
    const number = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = each => {
        for (; each; each = each.parentElement) {
            const colour = number(getComputedStyle(each).backgroundColor);
            if (colour.length === 3 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    return [...document.querySelectorAll('main *, header *, footer *')]
        .filter(each => [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
        .map(each => {
            const [a, b] = [light(number(getComputedStyle(each).color)), light(behind(each))];
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            return [ratio, each.tagName + '.' + each.className + ' ' + each.textContent.trim().slice(0, 30)];
        })
        .filter(([ratio]) => ratio < 4.5);
"""


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

    def unfit(self) -> list[str]:
        """What axe-core finds: whom the page does not serve, and where. `./dev test-seeing` installs it."""
        found = find_spec("axe_playwright_python")
        assert found is not None and found.origin is not None
        axe = Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")
        script = f"{axe}; const done = arguments[0]; axe.run().then(each => done(each.violations))"
        answer = _ask(f"{self._session}/execute/async", {"script": script, "args": []})
        return [f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:120]}" for each in answer]

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

    def press(self, key: str) -> None:
        """A key; those without a character have codes: \\ue004 is Tab, \\ue007 Enter."""
        presses = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        _ask(f"{self._session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": presses}]})

    def close(self) -> None:
        _ask(self._session, method="DELETE")

    def _devtools(self, command: str, parameters: Mapping[str, Any]) -> None:
        _ask(f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})


@contextmanager
def browser(*arguments: str) -> Iterator[Browser]:
    """A fresh one; `arguments` are of its command line."""
    with tempfile.TemporaryDirectory() as profile, _driver() as base:
        opened = Browser(base, {"args": [*ARGUMENTS, f"--user-data-dir={profile}", *arguments]})
        with closing(opened):
            yield opened


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
