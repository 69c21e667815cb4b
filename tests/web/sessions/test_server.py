"""The dashboard's server: who gets in, what a page gets, and what it can do."""

import os
import re
import socket
import time
from urllib.parse import urlsplit

import pytest

from agentos.userland.web.links import DIRECTORY, LINK_SECONDS, LINKS
from agentos.userland.web.sessions import FILE
from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.support.ports import free_port
from tests.support.wire import EMIT
from tests.web.conftest import Browser, browser_of, key_of, link_of


def test_a_link_logs_in_one_browser_once(kernel: Kernel) -> None:
    first, second = (Browser(urlsplit(link_of(kernel)).netloc) for _ in range(2))
    first.keys["link"] = second.keys["link"] = key_of(link_of(kernel))

    with first.open_page(use="link") as tab, second.open_page(use="link") as late:
        assert late.wait_closed() == 4401
        tab.wait(lambda shown: shown["role"] == "operator")
    with first.open_page() as tab:
        tab.wait(lambda shown: shown["role"] == "operator")


def test_a_link_is_used_up_by_its_key_alone(kernel: Kernel) -> None:
    """A chat program shows what is behind a link, and asks for it before a person does."""
    link = link_of(kernel)
    visitor = Browser(urlsplit(link).netloc)
    assert visitor.get(f"/?{urlsplit(link).query}")[0] == 200
    visitor.keys["link"] = {**key_of(link), "key": "another"}
    with visitor.connect() as tab:
        tab.begin(visitor.keys["link"])
        tab.send({"proof": "0" * 64})
        assert tab.wait_closed() == 4401

    visitor.log_in(link)


def test_an_old_link_is_refused(kernel: Kernel) -> None:
    link = link_of(kernel)
    for file in (kernel.state_dir / DIRECTORY / LINKS).iterdir():
        old = time.time() - LINK_SECONDS - 1
        os.utime(file, (old, old))

    stranger = Browser(urlsplit(link).netloc, {"link": key_of(link)})
    with stranger.open_page(use="link") as tab:
        assert tab.wait_closed() == 4401


def test_another_host_name_is_refused(browser: Browser) -> None:
    """DNS rebinding: a page of another site reaches this address under a name of its own."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        status, _, body = browser.get("/", Host=host)
        assert status in (400, 403), host
        assert "<html" not in body


def test_pages_of_other_sites_get_nothing(browser: Browser) -> None:
    host, _, port = browser.netloc.rpartition(":")
    for origin in (
        *("http://evil.example", "null", "", f"http://{browser.netloc}.evil.example", "http://127.0.0.1:1"),
        *(f"http://{host}:1", f"http://{host}", f"http://127.0.0.1:{port}", f"http://other.localhost:{port}"),
    ):
        with browser.connect(origin) as tab:
            assert tab.closed is not None, origin
    with browser.open_page() as tab:
        assert tab.closed is None


def test_no_script_but_its_own_runs_on_a_page(browser: Browser) -> None:
    _, headers, page = browser.get("/")

    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert " onload=" not in page
    assert "<script>" not in page


def test_only_files_of_the_page_are_sent(browser: Browser) -> None:
    assert browser.get("/static/app.js")[0] == 200
    for path in ("../serve.py", "..%2fserve.py", "/etc/passwd", "core", "core/../../serve.py", "app.js%00.css"):
        assert browser.get(f"/static/{path}")[0] in (400, 404), path


def test_files_are_sent_compressed_and_kept_as_long_as_none_changes(browser: Browser) -> None:
    _, headers, page = browser.get("/")
    assert headers["cache-control"] == "no-store"
    targets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(targets) == 4
    for target in targets:
        status, headers, plain = browser.get(target)
        assert (status, headers["vary"]) == (200, "accept-encoding"), target
        assert "immutable" in headers["cache-control"], target
        assert "content-encoding" not in headers, target
        _, headers, _ = browser.get(target, "HEAD", Accept_Encoding="deflate, gzip, br")
        assert headers["content-encoding"] == "gzip", target
        assert int(headers["content-length"]) < len(plain.encode()), target
        assert "content-encoding" not in browser.get(target, Accept_Encoding="br, gzip;q=0")[1], target
    assert browser.get(re.sub(r"/static/\w+/", "/static/0123456789ab/", targets[0]))[0] == 404
    assert browser.get("/static/app.js")[1]["cache-control"] == "no-cache"


def test_a_page_without_a_session_has_no_feed(browser: Browser) -> None:
    with Browser(browser.netloc).open_page() as tab:
        assert tab.wait_closed() == 4401


def test_the_feed_shows_what_happens(kernel: Kernel, browser: Browser) -> None:
    with browser.open_page() as tab, kernel.client() as client:
        tab.wait(lambda shown: shown["kernel"]["kernel_version"])
        kernel.spawn("seen")
        tab.wait(lambda shown: tab.state_of("seen") == "running")
        tab.wait(lambda shown: ("AGENT_READY", "seen") in [(e["type"], e["data"].get("name")) for e in shown["events"]])
        client.kill("seen", grace=0)
        tab.wait(lambda shown: tab.state_of("seen") in (None, "exited"))


def test_a_page_acts_by_system_calls_that_are_audited(kernel: Kernel, browser: Browser) -> None:
    kernel.spawn("steered")
    with browser.open_page() as tab, kernel.client() as client:
        assert tab.call("PAUSE", name="steered")["paused"] is True
        tab.wait(lambda shown: tab.state_of("steered") == "paused")
        refused = tab.call("PAUSE", name="nobody")
        assert (refused["success"], refused["code"]) == (False, "not_found")
        own = tab.ask({"type": "sessions", "id": 900})["own"]
        tab.call("KILL", name="steered", grace=0)

        def names() -> set[str]:
            return {entry["name"] for entry in client.get_audit_log(limit=200)["entries"] if entry["call"] == "PAUSE"}

        until(lambda: f"web:{own}" in names(), "the call is in the audit log")


def test_a_page_cant_leave_its_identity(browser: Browser) -> None:
    with browser.open_page() as tab:
        for call in ("HELLO", "EXIT", "CHUNK", "CANCEL", "NO_SUCH_CALL"):
            assert tab.call(call)["code"] == "bad_request", call


def test_a_revoked_session_is_closed(kernel: Kernel, browser: Browser) -> None:
    lost = browser_of(kernel)
    with lost.open_page() as page, browser.open_page() as tab:
        number = page.ask({"type": "sessions", "id": 900})["own"]
        left = tab.ask({"type": "sessions", "id": 901, "revoke": number})["sessions"]
        assert number not in [one["id"] for one in left]
        assert page.wait_closed() == 4401
    for use in ("run", "tab"):
        with lost.open_page(use=use) as page:
            assert page.wait_closed() == 4401


def test_messages_that_arent_the_pages_close_it(browser: Browser) -> None:
    for message in ({"type": "call"}, [1], {"type": "eval", "id": 1}, {"type": "call", "id": "x", "call": "LIST"}):
        with browser.open_page() as tab:
            tab.send(message)
            assert tab.wait_closed() in (1006, 1007)
    with browser.open_page() as tab:
        tab.send_text('{"type":"call","id":1,"call":"NOOP","args":%s}' % ("[" * 10_000 + "]" * 10_000))
        assert tab.wait_closed() == 1007
    with browser.open_page() as tab:
        tab.send({"type": "call", "id": 1, "call": "NOOP", "args": {"x": "y" * (70 << 10)}})
        assert tab.wait_closed() in (1006, 1009)


def test_a_page_that_doesnt_read_costs_little_and_gets_a_snapshot_later(kernel: Kernel, browser: Browser) -> None:
    with browser.open_page() as tab, kernel.connect() as wire:
        tab.wait(lambda shown: "kernel" in shown)
        tab.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        before = kernel.rss
        for number in range(450):  # 6 MB, of which Linux keeps 4 for a socket
            wire.call(EMIT, {"event_type": "custom.flood", "data": {"text": "x" * 14_000, "number": number}})
        assert kernel.rss - before < 40 << 20
        tab.wait(
            lambda shown: shown["dropped"] > 0 or any(event["data"].get("number") == 449 for event in shown["events"])
        )


@pytest.mark.usefixtures("kernels")
def test_an_open_page_goes_on_after_a_restart_and_nothing_that_its_origin_keeps_does() -> None:
    kernel = Kernel(f'[dashboard]\nlisten = "127.0.0.1:{free_port()}"\n')
    try:
        kernel.wait_ready()
        browser = browser_of(kernel)
        link = link_of(kernel)
        with browser.open_page() as tab:
            tab.wait(lambda shown: "boot" in shown)
            boot = tab.shown["boot"]
        kernel.kill()
        kernel.start_again()
        assert urlsplit(link_of(kernel)).netloc != browser.netloc
        with browser.open_page(use="tab") as tab:
            tab.wait(lambda shown: shown["boot"] != boot)
        with browser.open_page() as tab:
            assert tab.wait_closed() == 4401
        browser.keys["link"] = key_of(link)
        with browser.open_page(use="link") as tab:
            assert tab.wait_closed() == 4401
        kernel.kill()
        (kernel.place / "agentos.toml").write_text(f'[dashboard]\nlisten = "127.0.0.1:{free_port()}"\n')
        kernel.start_again()
        with Browser(urlsplit(link_of(kernel)).netloc, browser.keys).open_page(use="tab") as tab:
            assert tab.wait_closed() == 4401  # what has the former port may pass on what the page sends
        kernel.stop()
    finally:
        kernel.clean_up()


def test_an_agent_cant_connect_to_the_dashboard(kernel: Kernel, browser: Browser) -> None:
    """Also where a rule grants the address."""
    address = f"127.0.0.1:{browser.address[1]}"
    rules = {"allow": {"domains": [address]}}
    with AgentOSClient(kernel.socket, name="caller", permissions=rules) as guest:
        reply = guest.http(f"http://{address}/")
    assert (reply["success"], reply["code"]) == (False, "permission_denied")
    assert "the kernel's own" in reply["error"]


@pytest.mark.usefixtures("kernels")
def test_a_link_works_where_the_dashboard_listens() -> None:
    """Of an address as of those of the same listeners, for which see test_listeners.py."""
    for address, named, options in (
        ("127.0.0.2", "127.0.0.2:", ()),
        ("[::1]", "agentos-", ()),
        ("0.0.0.0", "agentos-", ["--insecure-listen"]),
    ):
        kernel = Kernel(f'[dashboard]\nlisten = "{address}:0"\n', options=options)
        try:
            kernel.wait_ready()
            browser = browser_of(kernel)
            assert browser.netloc.startswith(named), address
            port = browser.address[1]
            for reached in ("127.0.0.1", "[::1]") if named == "agentos-" else ():
                with Browser(f"{reached}:{port}", browser.keys).open_page() as tab:
                    assert tab.closed is None, (address, reached)
            kernel.stop()
        finally:
            kernel.clean_up()


@pytest.mark.usefixtures("kernels")
def test_another_address_needs_an_option() -> None:
    kernel = Kernel('[dashboard]\nlisten = "0.0.0.0:0"\n')
    try:
        assert kernel.wait_end() == 1
        assert "--insecure-listen" in kernel.said
    finally:
        kernel.clean_up()


def test_no_key_that_a_browser_has_is_stored(kernel: Kernel, browser: Browser) -> None:
    stored = (kernel.state_dir / DIRECTORY / FILE).read_text()

    assert browser.keys["run"]["id"] in stored
    for key in browser.keys.values():
        assert key["key"] not in stored
