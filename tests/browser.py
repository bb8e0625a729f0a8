"""A headless Chromium, driven over the pipe of its DevTools protocol: no port, no library.

https://chromedevtools.github.io/devtools-protocol/ says what can be called. `SITS_CHROMIUM` names
another browser than the one on the path.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Literal

PATIENCE_S: Final = 60.0
Theme = Literal["light", "dark"]


class BrowserError(RuntimeError):
    """The browser refused something, or a script in it failed."""


def chromium() -> str | None:
    """The browser, if there is one."""
    return os.environ.get("SITS_CHROMIUM") or shutil.which("chromium")


@dataclass(slots=True)
class Tab:
    """A page that is open."""

    browser: "Browser"
    session: str
    complaints: list[str] = field(default_factory=list)
    """What the page logged as an error: exceptions, refusals of the content security policy."""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol, on this page."""
        return self.browser.call(method, parameters, self.session)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:2_000])
        return answer["result"].get("value")

    def becomes(self, expression: str, patience_s: float = PATIENCE_S) -> Any:
        """The value of an expression once it is true; fails when it stays false."""
        deadline = time.monotonic() + patience_s
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise BrowserError(f"still {value!r}: {expression}")
            time.sleep(0.1)
        return value

    def press(self, key: str, code: int = 0) -> None:
        """A key, pressed and let go; `code` is its Windows key code, where that is needed."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def looks(self, theme: Theme) -> None:
        """What the user's system prefers."""
        features = [
            {"name": "prefers-color-scheme", "value": theme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def size(self, width: int, height: int, scale: float = 1) -> None:
        """The window's size in CSS pixels, and how many real ones each has."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page, or of what is in the window."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


class Browser:
    """A browser that runs."""

    def __init__(self, read: BinaryIO, write: BinaryIO) -> None:
        self._read, self._write = read, write
        self._last = 0
        self._tabs: dict[str, Tab] = {}

    def open(self, url: str, theme: Theme = "light", width: int = 1280, height: int = 900) -> Tab:
        """A tab that shows `url`."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.looks(theme)
        tab.size(width, height)
        tab.call("Page.navigate", url=url)
        tab.becomes("document.readyState === 'complete' && location.href !== 'about:blank'")
        return tab

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        """A method of the protocol; what the pages complain of meanwhile is kept."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            said = self._next()
            if said.get("id") == self._last:
                if "error" in said:
                    raise BrowserError(f"{method}: {said['error']['message']}")
                return dict(said["result"])
            self._heard(said)

    def _next(self) -> dict[str, Any]:
        message = bytearray()
        while (byte := self._read.read(1)) != b"\0":
            if not byte:
                raise BrowserError("the browser ended")
            message += byte
        return dict(json.loads(message))

    def _heard(self, said: dict[str, Any]) -> None:
        tab = self._tabs.get(said.get("sessionId", ""))
        if tab is None:
            return
        if said["method"] == "Runtime.exceptionThrown":
            tab.complaints.append(json.dumps(said["params"]["exceptionDetails"])[:2_000])
        if said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            tab.complaints.append(said["params"]["entry"]["text"])


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own; nothing of it is left at the end."""
    program = chromium()
    assert program is not None, "there is no chromium"
    with TemporaryDirectory(prefix="sits-browser-") as profile:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        # the protocol is on file descriptors 3 and 4
        script = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        )
        with subprocess.Popen(
            ["/bin/bash", "-c", script, "bash", program, *options, "about:blank"],
            pass_fds=(to_read, from_write),
            env=os.environ | {"HOME": profile},
            stderr=subprocess.DEVNULL,
        ) as process:
            os.close(to_read)
            os.close(from_write)
            with open(from_read, "rb") as read, open(to_write, "wb") as write:  # noqa: PTH123
                try:
                    yield (made := Browser(read, write))
                    made.call("Browser.close", {})
                finally:
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        process.kill()
