"""A headless Chromium for tests: a few WebDriver commands over chromedriver and the standard library."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the WebDriver standard's key of an element reference
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def missing() -> str | None:
    """Return the reason why no browser can start; None if one can."""
    if not any(map(shutil.which, NAMES)):
        return "no Chromium on the PATH (Debian: apt-get install chromium chromium-driver)"
    has_driver = shutil.which("chromedriver")
    return None if has_driver else "no chromedriver on the PATH (Debian: apt-get install chromium-driver)"


class Browser:
    """A browser window of `width` x `height`; `close` ends the browser."""

    def __init__(self, width: int, height: int, is_dark: bool = False):
        self.driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = next(line for line in self.driver.stdout if "started successfully on port" in line)
        self.base = f"http://127.0.0.1:{line.rsplit(maxsplit=1)[1].rstrip('.')}"
        self.base += f"/session/{self._start()}"
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        if is_dark:
            self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])

    def _start(self) -> str:
        binary = next(filter(None, map(shutil.which, NAMES)))
        # The sandbox does not start for root, shared memory is small in containers.
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"]
        options = {"binary": binary, "args": arguments}
        capabilities = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        return self._ask("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url: str) -> None:
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of the JavaScript function body `script`."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, condition: str, timeout_s: float = 10.0) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        end = time.monotonic() + timeout_s
        while not (value := self.run(f"return {condition}")):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.02)
        return value

    def click(self, selector: str) -> None:
        """Click as a user does: it fails if something covers the element."""
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._ask("POST", f"/element/{element}/click", {})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def complaints(self) -> list[str]:
        """Return the page's new console messages, with violations of its content security policy."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        try:
            self._ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.driver.stdout.close()
