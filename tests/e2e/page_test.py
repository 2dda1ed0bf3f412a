#!/usr/bin/env python3
"""The page at / of the daemon's HTTP listener in a browser: Debian's chromium without a window, against abacus.

usage: tests/e2e/page_test.py FOREDRAFT [DIR]   (the binary; a folder for screenshots)
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request

from chromium import Chromium
from gateway_test import Daemon, wait_until

QUESTION = "What is 48 + 275?"
SEED = 7
WIDE, NARROW = (1280, 800), (390, 780)
TAKES = "document.querySelectorAll('.take')"
LAST = "[...document.querySelectorAll('.take')].at(-1)"

# Every text that is smaller in contrast to what lies behind it than WCAG's level AA asks for: 4.5, or 3 for large text.
CONTRAST = """(() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
  const paint = colours => { canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const faults = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('').trim();
    if (!text || element.closest('script, style, .hidden, :disabled') || !element.checkVisibility()) continue;
    const behind = [];
    for (let e = element; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
    const style = getComputedStyle(element);
    const [a, b] = [light(paint(behind)), light(paint([...behind, style.color]))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (contrast < (large ? 3 : 4.5)) faults.push(`${text.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return faults;
})()"""


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def url_of(daemon: Daemon) -> str:
    return re.search(r"openai (http://[0-9.:]+)", daemon.log.read_text())[1]


def visit(browser: Chromium, url: str, size: tuple[int, int], *, dark: bool = False) -> None:
    browser.resize(*size, dark=dark)
    browser.open(f"{url}/")
    browser.wait("document.getElementById('state').textContent === 'serving' && !document.getElementById('send').disabled")


def send(browser: Chromium, text: str) -> None:
    browser.type("#question", text)
    browser.press("Enter", 13)


def send_and_wait(browser: Chromium, text: str) -> None:
    count = browser.ask(f"{TAKES}.length")
    send(browser, text)
    browser.wait(f"{TAKES}.length === {count + 1} && !{LAST}.matches('.running')")


def choose(browser: Chromium, k: str) -> None:
    browser.ask("document.getElementById('settings').open = true")
    browser.click(f"#drafts label:has([value='{k}'])")
    assert browser.ask("document.querySelector('input[name=k]:checked').value") == k


def tokens(browser: Chromium, origin: str = "") -> list[str]:
    """The pieces of text of the last answer, thinking first."""
    return browser.ask(f"[...{LAST}.querySelectorAll('.token{'.' + origin if origin else ''}')].map(token => token.textContent)")


def check_answer(browser: Chromium, url: str) -> None:
    """An answer is the API's for the same seed, with thinking folded and each token in the colour of its origin."""
    visit(browser, url, WIDE)
    browser.type("#seed", str(SEED))
    send_and_wait(browser, QUESTION)
    choice = post(url, {"messages": [{"role": "user", "content": QUESTION}], "seed": SEED, "return_token_ids": True})["choices"][0]
    message = choice["message"]
    shown = browser.ask(f"{LAST}.querySelector(':scope > .text').textContent")
    assert shown == message["content"].strip(), f"{shown!r} is not {message['content']!r}"
    thinking = f"{LAST}.querySelector('.thinking')"
    assert browser.ask(f"{thinking}.open") is False
    assert browser.ask(f"{thinking}.querySelector('.text').textContent") == message["reasoning_content"].lstrip()

    # Each piece is where the API says that its token is; tokens without text have no piece, and line breaks in front are not shown.
    text, at = (message["reasoning_content"] + message["content"]).encode(), 0
    expected = []
    for origin, length in zip(choice["token_origins"], choice["token_text_bytes"]):
        if piece := text[at:at + length].decode():
            expected.append((origin, piece))
        at += length
    assert at == len(text)
    pieces = browser.ask(f"[...{LAST}.querySelectorAll('.token')].map(token => [token.title, token.textContent])")
    assert [(origin, piece) for origin, piece in expected if piece.strip()] == [tuple(piece) for piece in pieces if piece[1].strip()]
    for origin in ("first", "drafted", "target"):
        count = browser.ask(f"document.getElementById('count-{origin}').textContent")
        assert int(count) == choice["token_origins"].count(origin), f"{origin}: {count}"
    colours = browser.ask(f"['first', 'drafted', 'target'].map(origin => {{const style = getComputedStyle({LAST}"
                          ".querySelector('.token.' + origin)); return style.backgroundColor + style.borderBottomStyle})")
    assert len(set(colours)) == 3, colours
    speculation = choice["speculation"]
    length = browser.ask("document.getElementById('length').textContent")
    assert abs(float(length) - 1 - speculation["accepted_tokens"] / speculation["steps"]) < 0.0051, f"{length}: {speculation}"
    accepted = f"{speculation['accepted_tokens']} of {speculation['draft_tokens']} drafts accepted"
    assert accepted in browser.ask(f"{LAST}.querySelector('.figures').textContent"), accepted
    columns = browser.ask("new Set([...document.querySelectorAll('#steps rect')].map(rect => rect.getAttribute('x'))).size")
    assert columns == min(46, speculation["steps"]), columns
    assert float(browser.ask("document.getElementById('rate').textContent.replace(',', '')")) > 0


def check_again(browser: Chromium) -> None:
    """The same seed with other K: the same tokens, none of them drafted. With another temperature nothing is compared."""
    choose(browser, "0")
    browser.click(".figures button")
    browser.wait(f"{TAKES}.length === 2 && !{LAST}.matches('.running')")
    assert tokens(browser, "drafted") == []
    assert tokens(browser) == browser.ask(f"[...{TAKES}[0].querySelectorAll('.token')].map(token => token.textContent)")
    verdict = browser.ask(f"{LAST}.querySelector('.verdict').textContent")
    assert re.match(r"the same [0-9]+ tokens as above, [0-9.]+ times the speed", verdict), verdict
    browser.ask("const slider = document.getElementById('temperature'); slider.value = 2; slider.dispatchEvent(new Event('input'))")
    browser.click(".figures button")
    browser.wait(f"{TAKES}.length === 3 && !{LAST}.matches('.running')")
    assert browser.ask(f"{LAST}.querySelector('.verdict')") is None
    assert "temperature 2," in browser.ask(f"{LAST}.querySelector('.figures').textContent")
    sent = browser.bodies[-3:]
    assert [body.get("max_draft_tokens") for body in sent] == [None, 0, 0], sent
    assert [body.get("temperature") for body in sent] == [None, None, 2], sent
    assert [body["seed"] for body in sent] == [SEED] * 3 and all(body["messages"] == sent[0]["messages"] for body in sent), sent
    browser.click("#own-temperature")
    choose(browser, "auto")


def check_stop(browser: Chromium, daemon: Daemon) -> None:
    """Escape ends the request, and the conversation goes on."""
    browser.ask("document.getElementById('reset').click()")
    assert browser.ask(f"{TAKES}.length") == 0
    browser.ask("""window.fetched = window.fetch; window.fetch = (url, options) => {
      if (options?.body) options.body = JSON.stringify({...JSON.parse(options.body), ignore_eos: true});
      return window.fetched(url, options); }""")
    send(browser, QUESTION)
    browser.wait("document.getElementById('count-target').textContent > 3 && document.getElementById('send').textContent === 'Stop'")
    browser.press("Escape", 27)
    browser.wait(f"{LAST}.textContent.includes('stopped')")
    wait_until(lambda: daemon.metric("requests_running") == 0, "the request has ended")
    browser.ask("window.fetch = window.fetched")
    send_and_wait(browser, QUESTION)
    assert "stopped" not in browser.ask(f"{LAST}.textContent")


def check_layout(browser: Chromium, url: str, folder: pathlib.Path | None) -> None:
    """Nothing is wider than the window, no text is hard to read, in every size and scheme; every field has a name."""
    for name, size in (("wide", WIDE), ("narrow", NARROW)):
        for dark in (False, True):
            tag = f"{name}-{'dark' if dark else 'light'}"
            visit(browser, url, size, dark=dark)
            if folder:
                browser.screenshot(folder / f"{tag}-welcome.png")
            send_and_wait(browser, QUESTION)
            send_and_wait(browser, "Sort these numbers from smallest to largest: 41, 7, 88, 19.")
            browser.click(".turn:last-child .take summary")
            browser.ask("document.querySelector('main').scrollTop = 1e6")
            assert browser.ask(f"{LAST}.querySelector('.thinking').open")
            if folder:
                browser.screenshot(folder / f"{tag}-answer.png")
            browser.ask("document.getElementById('settings').open = true")
            if folder:
                browser.screenshot(folder / f"{tag}-settings.png")
            page, paper = browser.ask("[document.scrollingElement.scrollWidth, getComputedStyle(document.body).backgroundColor]")
            assert page <= size[0], f"{tag}: {page} wide"
            assert (max(map(int, re.findall(r"\d+", paper))) < 128) == dark, f"{tag}: {paper}"
            faults = browser.ask(CONTRAST)
            assert not faults, f"{tag}: {faults}"
            unnamed = browser.ask("[...document.querySelectorAll('input:not([hidden]), textarea, button')].filter(field => "
                                  "!field.textContent.trim() && !field.labels?.length).map(field => field.outerHTML)")
            assert not unnamed, unnamed


def check_refusals(browser: Chromium, daemon: Daemon, url: str) -> None:
    """What the daemon says is shown; one that has gone is noticed, and greeted when it comes back."""
    visit(browser, url, WIDE)
    browser.type("#most", "0")
    send_and_wait(browser, QUESTION)
    refusal = browser.ask(f"{LAST}.querySelector('.error').textContent")
    assert "max_completion_tokens" in refusal, refusal
    browser.ask("document.getElementById('most').value = ''")
    send_and_wait(browser, QUESTION)
    assert browser.ask(f"{LAST}.querySelector('.error')") is None
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait(60)
    send_and_wait(browser, QUESTION)
    assert "does not answer" in browser.ask(f"{LAST}.querySelector('.error').textContent")
    browser.wait("document.getElementById('state').textContent === 'no answer'")


def check_token(browser: Chromium, binary: str, directory: pathlib.Path) -> None:
    """A daemon that asks for tokens: the page asks for one, says what is wrong with it, and sends the right one."""
    file = directory / "tokens"
    made = subprocess.run([binary, "token", "--name", "alice", "--append", file], capture_output=True, text=True, check=True)
    daemon = Daemon(binary, directory, f"server.auth.tokens_file={file}")
    try:
        browser.open(f"{url_of(daemon)}/")
        browser.wait("!document.getElementById('access').hidden")
        assert browser.ask("document.getElementById('send').disabled")
        browser.type("#token", "wrong")
        browser.press("Enter", 13)
        browser.wait("document.getElementById('state').textContent.includes('token')")
        browser.ask("document.getElementById('token').value = ''")
        browser.type("#token", made.stdout.strip().splitlines()[0])
        browser.click("#access button")
        browser.wait("document.getElementById('state').textContent === 'serving'")
        send_and_wait(browser, QUESTION)
        assert tokens(browser)
    finally:
        daemon.process.kill()


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, Chromium() as browser:
        directory = pathlib.Path(name)
        daemon = Daemon(sys.argv[1], directory)
        try:
            url = url_of(daemon)
            check_answer(browser, url)
            check_again(browser)
            check_stop(browser, daemon)
            check_layout(browser, url, folder)
            assert browser.messages == [], browser.messages
            assert browser.origins == {url}, browser.origins
            check_refusals(browser, daemon, url)
            check_token(browser, sys.argv[1], directory)
        finally:
            daemon.process.kill()
    print("page_test: ok")


if __name__ == "__main__":
    main()
