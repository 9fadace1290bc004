"""Chromium over WebDriver, for tests of pages in a real browser."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key by which WebDriver names elements


class Browser:
    """The few words of WebDriver that are needed."""

    def __init__(self, address: str, profile: Path) -> None:
        self.address = address
        options = {
            "args": [*FLAGS.split(), f"--user-data-dir={profile}"],
            "binary": shutil.which("chromium"),
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address += f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{method} {path}: {json.load(error)['value']['message']}")

    def open(self, path: Path, *, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": size})
        self._load("/url", {"url": path.resolve().as_uri()})

    def reload(self) -> None:
        self._load("/refresh", {})

    def _load(self, path: str, body: dict[str, Any]) -> None:
        """Load a page, and wait until its scripts have run: on a busy machine the old page may still be there."""
        self.run("window.isOld = true")
        self._ask("POST", path, body)
        deadline = time.monotonic() + 30
        while not self.run('return !window.isOld && document.readyState === "complete"'):
            assert time.monotonic() < deadline, f"{path}: the page did not load in 30 s"
            time.sleep(0.05)

    def colours(self, scheme: str) -> None:
        """Prefer light or dark."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": media})

    def scripts(self, *, allowed: bool) -> None:
        """Let the next page run its scripts, or not; those of a test run in any case."""
        params = {"value": not allowed}
        self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setScriptExecutionDisabled", "params": params})

    def press(self, keys: str) -> None:
        """Type on whatever has the focus."""
        typed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": typed}]})

    def run(self, script: str) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def click(self, selector: str) -> None:
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{found[ELEMENT]}/click", {})

    def log(self) -> list[str]:
        return [f"{line['level']}: {line['message']}" for line in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def quit(self) -> None:
        self._ask("DELETE", "")


def started(profile: Path) -> Iterator[Browser]:
    """Start Chromium, and end it; skip the test where there is none."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("not run: no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(100):
            try:
                urllib.request.urlopen(f"{address}/status", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        found = Browser(address, profile)
        yield found
        found.quit()
    finally:
        driver.terminate()
        driver.wait(timeout=20)
