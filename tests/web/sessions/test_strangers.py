"""A stranger on the dashboard's port while the kernel is down, on another port, and a chat that shows a link."""

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.kernel import Kernel, shared, until
from tests.support.ports import free_port
from tests.support.wire import PATIENCE
from tests.web.chromium import SHOWN, find_chromium, log_in, renew, take_tab
from tests.web.conftest import Browser, link_of
from tests.web.sessions.impostor import Impostor, impostor

# Everything that a page of the origin can do with what the origin keeps; returns the code of the connection's end.
USE_WHAT_IS_KEPT = """async (place) => {
  const opened = await new Promise((resolve) => {
    const request = indexedDB.open("agentos", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("keys");
    request.onsuccess = () => resolve(request.result);
  });
  const kept = await new Promise((resolve) => {
    const request = opened.transaction("keys").objectStore("keys").get("run");
    request.onsuccess = () => resolve(request.result);
  });
  if (!kept) return "nothing kept";
  const raw = await crypto.subtle.exportKey("raw", kept.key).catch(() => null);
  if (raw) return "the key was read";
  const socket = new WebSocket(`ws://${place}/feed`);
  return new Promise((resolve) => {
    const { use, id, salt } = kept;
    socket.onopen = () => socket.send(JSON.stringify({ use, id, salt, nonce: "x" }));
    socket.onclose = (event) => resolve(event.code);
    socket.onmessage = async (event) => {
      const message = JSON.parse(event.data);
      if (!message.nonce) return resolve("let in");
      const lines = ["agentos dashboard", "page", use, id, salt, "x", message.nonce].join("\\n");
      const signed = new Uint8Array(await crypto.subtle.sign("HMAC", kept.key, new TextEncoder().encode(lines)));
      socket.send(JSON.stringify({ proof: Array.from(signed, (one) => one.toString(16).padStart(2, "0")).join("") }));
    };
  });
}"""
OPEN_FEED = (
    "(place) => new Promise((end) => { new WebSocket(`ws://${place}/feed`).onclose = (event) => end(event.code); })"
)
WORKER = "addEventListener('fetch', (event) => event.respondWith(new Response('of the stranger')));"


@pytest.fixture(scope="module")
def kernel(kernels: None) -> Iterator[Kernel]:
    """A kernel with a port that it keeps."""
    find_chromium()
    with shared(f'[dashboard]\nlisten = "127.0.0.1:{free_port()}"\n') as started:
        yield started


@pytest.fixture
def context(chromium: Any, kernel: Kernel) -> Iterator[Any]:
    made = log_in(chromium, kernel)
    yield made
    made.close()


def show(context: Any, url: str) -> Any:
    """A page that is loaded from there."""
    page = take_tab(context)
    page.goto(url)
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    return page


def origin_of(kernel: Kernel) -> str:
    return urlsplit(link_of(kernel)).netloc


def tries(stranger: Impostor) -> list[str]:
    """The messages that pages have sent it."""
    return [one for one in stranger.got if one.startswith("{")]


def test_a_stranger_on_the_port_gets_nothing_and_is_not_believed(context: Any, kernel: Kernel) -> None:
    netloc = origin_of(kernel)
    lies = {"agents": {}, "kernel": {"since_ms": 0, "isolation": "false"}, "approvals": [], "events": [], "level": "x"}
    answers = [
        json.dumps({"nonce": "0" * 32, "proof": "0" * 64}),
        json.dumps({"keys": []}),
        json.dumps({"snapshot": {**lies, "boot": "x"}, "at": 0}),
    ]
    port = int(netloc.rpartition(":")[2])
    page = show(context, f"http://{netloc}/")
    kernel.kill()
    with impostor(port, lambda _: answers) as stranger:
        page.get_by_text("doesn't prove that it is the kernel of this page").wait_for()
        assert page.evaluate("document.body.innerText.includes('false')") is False
    assert not any("cookie:" in one.lower() for one in stranger.got)
    messages = [json.loads(one) for one in tries(stranger)]
    assert messages
    assert {tuple(sorted(one)) for one in messages} == {("id", "nonce", "salt", "use")}

    page.clock.install()
    with impostor(port) as silent:  # it holds up no page
        until(lambda: len(tries(silent)) >= 1, "the page has tried it")
        page.clock.fast_forward(30_000)
        until(lambda: len(tries(silent)) >= 2, "the page has tried it again")
    kernel.start_again()
    page.get_by_text("Kernel restarted").wait_for()
    for seen in messages:  # what it has is worth nothing afterwards
        with Browser(origin_of(kernel)).connect() as tab:
            tab.send(seen)
            assert tab.next() is not None
            tab.send({"proof": "0" * 64})
            assert tab.wait_closed() == 4401


def test_a_strangers_page_at_the_origin_of_a_dead_kernel_is_let_in_nowhere(context: Any, kernel: Kernel) -> None:
    """A person reloads the page while the stranger has the port: its script may use all that the origin keeps."""
    netloc = origin_of(kernel)
    port = int(netloc.rpartition(":")[2])
    page = show(context, f"http://{netloc}/")
    kernel.kill()
    files = {"/": ("text/html", "<p>of the stranger</p>"), "/worker.js": ("text/javascript", WORKER)}
    with impostor(port, files=files):
        page.reload()
        page.get_by_text("of the stranger").wait_for()
        page.evaluate("navigator.serviceWorker.register('/worker.js').then(() => navigator.serviceWorker.ready)")
    kernel.start_again()
    kernel.wait_ready()

    later = origin_of(kernel)
    assert page.evaluate(USE_WHAT_IS_KEPT, netloc) == 4401
    renew(context, kernel)
    assert page.evaluate(USE_WHAT_IS_KEPT, netloc) == 4401
    fresh = show(context, f"http://{later}/")
    assert fresh.evaluate("navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0


def test_a_page_at_another_port_of_the_host_has_nothing(context: Any, kernel: Kernel) -> None:
    netloc = origin_of(kernel)
    host = netloc.rpartition(":")[0]
    assert context.cookies() == []
    port = free_port()
    with impostor(port, files={"/": ("text/html", "<p>of the stranger</p>")}) as stranger:
        page = context.new_page()
        for name in (host, "localhost", "127.0.0.1"):
            page.goto(f"http://{name}:{port}/")
            assert page.evaluate(USE_WHAT_IS_KEPT, netloc) == "nothing kept", name
            assert page.evaluate(f"fetch('http://{netloc}/').then(() => 'read', () => 'refused')") == "refused", name
            assert page.evaluate(OPEN_FEED, netloc) == 1006, name
        assert not any("cookie:" in one.lower() for one in stranger.got)


def test_a_link_in_a_web_chat_works(chromium: Any, kernel: Kernel) -> None:
    link, other = link_of(kernel), link_of(kernel)
    texts = [f'<a href="{link}">here</a>', f'<a href="{other}" target="_blank">there</a>']
    port = free_port()
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    with impostor(port, files={"/": ("text/html", "<br>".join(texts))}):
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        with context.expect_page() as opened:
            page.get_by_text("there").click()
        opened.value.locator("#status", has_text=SHOWN).wait_for(state="attached")
        page.get_by_text("here", exact=True).click()
        page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    assert re.fullmatch(r"http://[^/]*/", page.url)  # the key isn't in the address any more
    page.reload()
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    page.goto(link)
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")  # used, but this browser is logged in
    stranger = chromium.new_context()
    seen = stranger.new_page()
    seen.goto(link)
    seen.get_by_text("This link was used already").wait_for()
    stranger.close()
    context.close()


def test_a_browser_without_room_for_its_key_says_so_and_a_reload_logs_it_out(chromium: Any, kernel: Kernel) -> None:
    link, said, context = link_of(kernel), list[str](), chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    room = {"origin": f"http://{urlsplit(link).netloc}", "quotaSize": 1}
    context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", room)
    page.goto(link)
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    assert said == ["QuotaExceededError"]
    page.reload()
    page.get_by_text("This browser isn't logged in here").wait_for()
    context.close()


def test_over_plain_http_from_another_address_no_page_logs_in(chromium: Any, kernel: Kernel) -> None:
    link = link_of(kernel)
    browser = Browser(urlsplit(link).netloc)

    def answer(route: Any) -> None:
        status, headers, body = browser.get(urlsplit(route.request.url).path)
        route.fulfill(status=status, headers=dict(headers), body=body)

    context = chromium.new_context()
    page = context.new_page()
    page.route("http://agents.example.com/**", answer)
    page.goto(link.replace(browser.netloc, "agents.example.com"))
    page.get_by_text("forward the port with ssh -L").wait_for()
    context.close()

    browser.log_in(link)  # it wasn't used up


def test_a_page_that_asks_by_itself_isnt_in_use_and_a_person_is(context: Any, kernel: Kernel) -> None:
    sent: list[dict[str, Any]] = []
    page = context.new_page()
    page.on("websocket", lambda socket: socket.on("framesent", lambda text: sent.append(json.loads(text))))
    page.goto(f"http://{origin_of(kernel)}/#/system")
    page.get_by_role("row", name="this one").wait_for()
    assert [one["type"] for one in sent if "type" in one].count("use") == 0
    assert any(one.get("type") == "sessions" for one in sent)
    page.evaluate("dispatchEvent(new KeyboardEvent('keydown', { key: 'x' }))")  # a script is no person

    for _ in range(3):
        page.keyboard.press("j")
    page.get_by_role("button", name="log out").click()
    page.get_by_text("This browser is logged out").wait_for()

    assert [one["type"] for one in sent if "type" in one].count("use") == 1


# The browser never says whether it opened what it keeps; the page's limit for that is over at once.
NO_STORE = """
  indexedDB.open = () => ({});
  const wait = setTimeout;
  window.setTimeout = (work, time) => wait(work, time === 5000 ? 0 : time);
"""


def test_a_page_logs_in_where_the_browser_opens_no_store(chromium: Any, kernel: Kernel) -> None:
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    context.add_init_script(NO_STORE)
    page = context.new_page()
    page.goto(link_of(kernel))
    page.locator("#status", has_text=SHOWN).wait_for(state="attached")
    page.reload()
    page.get_by_text("This browser isn't logged in here").wait_for()
    context.close()
