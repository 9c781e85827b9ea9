"""The report in a real browser: Chromium without a window, driven over its debugging pipe."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

from tests.test_report import attacked_run, made_up_run
from wasserball.evaluate.report import write_report

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads from 3 and writes to 4."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class Browser:
    """One tab. ``problems`` is all that a developer would see in red, and all that leaves the machine."""

    def __init__(self, width: int = 1200, height: int = 900) -> None:
        self.problems: list[str] = []
        self._number, self._session, self._buffer = 0, "", b""
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        theirs, self._send = os.pipe()
        self._receive, answers = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (theirs, answers)]
        assert CHROMIUM is not None
        options = ["--headless=new", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._profile.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, high), CHROMIUM, *options],
            pass_fds=high,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (theirs, answers, *high):
            os.close(end)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._session = ""
        self.call("Browser.close")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._send)
        os.close(self._receive)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = dict(id=self._number, method=method, params=parameters)
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser is gone"
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Network.loadingFailed":
                self.problems.append(json.dumps(message["params"]))
            case "Runtime.consoleAPICalled" if message["params"]["type"] in ("error", "warning", "assert"):
                self.problems.append(json.dumps(message["params"]["args"]))
            case "Log.entryAdded":
                self.problems.append(json.dumps(message["params"]["entry"]))
            case "Network.requestWillBeSent" if not message["params"]["request"]["url"].startswith(("file:", "data:")):
                self.problems.append(f"asked for {message['params']['request']['url']}")
        return message

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, page: Path) -> None:
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def ask(self, script: str) -> Any:
        """The value of an expression, or of what it promises."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait for an expression to become true."""
        assert self.ask(
            "(async () => { for (let i = 0; i < 200; i++) { "
            f"if ({script}) return true; await new Promise((done) => setTimeout(done, 50)); }} return false; }})()"
        ), script

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of an element, from elsewhere."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y, width, height = self.ask(
            f"(({{x, y, width, height}}) => [x, y, width, height])({element}.getBoundingClientRect())"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)

    def choose(self, select: str, value: str) -> None:
        """As if a reader chose from a list."""
        element = f"document.getElementById({json.dumps(select)})"
        self.ask(f"{element}.value = {json.dumps(value)}; {element}.dispatchEvent(new Event('change'))")

    def to_the_gallery(self) -> None:
        self.ask("document.getElementById('gallery').scrollIntoView({behavior: 'instant'})")
        self.until("document.querySelector('.card')")

    def count(self, selector: str) -> int:
        """How many of these are to be seen."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return int(self.ask(f"{found}.filter((one) => one.getClientRects().length).length"))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    write_report([attacked_run(folder / "run")], path)
    return path


def test_nothing_is_wrong_and_the_gallery_waits_until_it_is_near(page: Path) -> None:
    with Browser() as browser:
        browser.open(page)
        assert browser.count(".card") == 0
        assert browser.count("svg.chart.size0 .mark") > 0
        browser.to_the_gallery()
        assert browser.count(".card") > 0
        assert browser.problems == []


def test_the_filter_chooses_cards_and_says_how_many(page: Path) -> None:
    with Browser() as browser:
        browser.open(page)
        browser.to_the_gallery()
        counts = {}
        for outcome in ("f", "h", "w", ""):
            browser.ask(f"document.querySelector('input[name=outcome][value=\"{outcome}\"]').click()")
            counts[outcome] = browser.count(".card")
            said = browser.ask(f"document.querySelector('[data-count=\"{outcome}\"]').textContent")
            assert said == str(counts[outcome])
        assert counts["f"] > 0
        assert counts[""] == 20 == counts["f"] + counts["h"] + counts["w"]
        browser.choose("sort", "distance")
        distances = browser.ask(
            "[...document.querySelectorAll('.card')].map((card) => parseFloat(card.ariaLabel.split('distance ')[1]))"
        )
        assert distances == sorted(distances)
        assert browser.problems == []


def test_arrows_come_with_the_mouse_and_with_the_keyboard(page: Path) -> None:
    with Browser() as browser:
        browser.open(page)
        browser.to_the_gallery()
        assert browser.count("#lens .arrows path") == 0
        browser.point(".card")
        browser.until("!document.getElementById('lens').hidden")
        assert browser.count("#lens .arrows path") > 0
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
        browser.until("document.getElementById('lens').hidden")
        browser.ask("document.querySelector('input[name=outcome]').focus()")
        browser.press("Tab")  # from the last control to the first card
        browser.until("document.activeElement.matches('.card') && !document.getElementById('lens').hidden")
        assert browser.count("#lens .arrows path") > 0
        browser.press("Enter")
        browser.until("document.getElementById('viewer').open")
        assert browser.count("#transport .arrows path") > 0
        first = browser.ask("document.getElementById('facts').textContent")
        browser.press("ArrowRight")
        browser.until("document.getElementById('place').textContent.startsWith('2 of')")
        assert browser.ask("document.getElementById('facts').textContent") != first
        browser.press("Escape")
        browser.until("!document.getElementById('viewer').open && document.activeElement.dataset.place !== undefined")
        assert browser.problems == []


def test_the_adversarial_picture_is_the_clean_one_and_its_change(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", (3, 8, 8), samples=6, attacks=("pgd",), eps=(0.1,))
    write_report([run], tmp_path / "report.html")
    batch = run.read(next(run.setting.units()))
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.to_the_gallery()
        for name, images in (("clean", batch.clean), ("adversarial", batch.adversarial)):
            drawn = f"pictures.{name}(set, 4).getContext('2d').getImageData(0, 0, 8, 8).data"
            pixels = browser.ask(f"pictures.open(0, 0).then((set) => [...{drawn}])")
            wanted = (255 * images[4]).permute(1, 2, 0).flatten().tolist()
            seen = [value for place, value in enumerate(pixels) if place % 4 != 3]
            assert max(abs(a - b) for a, b in zip(seen, wanted, strict=True)) <= 1.6
        assert browser.problems == []


def test_tips_theme_and_a_phone(page: Path) -> None:
    with Browser() as browser:
        browser.open(page)
        browser.point("svg.size0 .colour0 .mark:last-child")
        browser.until("!document.getElementById('tip').hidden")
        said = browser.ask("document.getElementById('tip').textContent").split("\n")
        assert said[0].startswith("every attack, eps 0.3: ")  # it lies on the other, and both are told
        assert any(line.startswith("PGD, eps 0.3: ") for line in said)
        ground = "getComputedStyle(document.body).backgroundColor"
        light = browser.ask(ground)
        browser.ask("document.getElementById('theme').click()")
        assert browser.ask(ground) != light
        browser.choose("histogram", "histogram-0-1")
        assert browser.count(".histogram") == 1
        browser.resize(375, 800)
        browser.open(page)
        browser.to_the_gallery()
        assert browser.ask("document.documentElement.scrollWidth") == 375
        assert browser.problems == []


def test_models_are_switched_in_a_comparison(tmp_path: Path) -> None:
    runs = [
        made_up_run(tmp_path / name, (1, 8, 8), samples=count, model=name, attacks=("pgd", "fw"), eps=(0.1, 0.2))
        for name, count in (("first", 12), ("second", 9))
    ]
    write_report(runs, tmp_path / "report.html")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        browser.to_the_gallery()
        browser.ask("document.querySelector('input[name=outcome][value=\"\"]').click()")
        assert browser.count(".card") == 12
        browser.choose("model", "1")
        browser.until("document.querySelectorAll('.card').length === 9")
        assert browser.problems == []
