"""Chromium without a window, driven by its DevTools protocol over a pair of pipes (--remote-debugging-pipe): JSON texts, each ended
by a zero byte. Needs Debian's package chromium and nothing else."""

import base64
import itertools
import json
import os
import pathlib
import select
import subprocess
import tempfile
import time


class Chromium:
    """One browser with one tab. `messages` has what the page complained of, `origins` whom it called, `bodies` what it sent."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="foredraft-chromium-", ignore_cleanup_errors=True)
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()

        def pipes() -> None:  # the browser reads descriptor 3 and writes 4
            os.dup2(commands, 13)
            os.dup2(events, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        command = ["chromium", "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                   f"--user-data-dir={self._profile.name}"]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium's sandbox refuses root
        self._log = pathlib.Path(self._profile.name) / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen([*command, "about:blank"], stdout=log, stderr=log, close_fds=False, preexec_fn=pipes)
        os.close(commands)
        os.close(events)
        self._input = b""
        self._numbers = itertools.count(1)
        self._session = ""
        self.messages: list[str] = []
        self.origins: set[str] = set()
        self.bodies: list[dict] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._profile.cleanup()

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def ask(self, expression: str) -> object:
        """The value of an expression in the page; promises are awaited."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"not within {seconds} s: {expression}\npage: {self.ask('document.body.innerText')}"
            time.sleep(0.05)

    def type(self, selector: str, text: str) -> None:
        self.ask(f"document.querySelector({json.dumps(selector)}).focus()")
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """`code` is the key's Windows code; modifiers: 8 is Shift."""
        text = "\r" if key == "Enter" else ""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text if kind == "keyDown" else "",
                       modifiers=modifiers)

    def click(self, selector: str) -> None:
        """Clicks where the element is, so that what covers it gets the click."""
        where = self.ask("(() => {const e = document.querySelector(%s); e.scrollIntoView({block: 'nearest'});"
                         "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]})()" % json.dumps(selector))
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def screenshot(self, path: pathlib.Path) -> None:
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: object) -> dict:
        number = next(self._numbers)
        call = {"id": number, "method": method, "params": parameters}
        if self._session:
            call["sessionId"] = self._session
        os.write(self._commands, json.dumps(call).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") != number:
                self._note(message)
                continue
            assert "error" not in message, f"{method}: {message['error']}"
            return message["result"]

    def _note(self, event: dict) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(json.dumps(parameters["args"]))
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.origins.add("/".join(parameters["request"]["url"].split("/")[:3]))
            if body := parameters["request"].get("postData"):
                self.bodies.append(json.loads(body))

    def _read(self) -> dict:
        while b"\0" not in self._input:
            ready, _, _ = select.select([self._events], [], [], 60)
            part = os.read(self._events, 1 << 20) if ready else b""
            assert part, f"chromium does not answer:\n{self._log.read_text()}"
            self._input += part
        message, self._input = self._input.split(b"\0", 1)
        return json.loads(message)
