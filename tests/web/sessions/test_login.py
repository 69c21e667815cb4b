"""Logging in against strangers: other users of the host, other sites in the browser, sessions that may only look."""

from contextlib import ExitStack
from urllib.parse import urlsplit

from tests.support.kernel import Kernel, until
from tests.web.conftest import Browser, browser_of, key_of, link_of


def test_a_stranger_that_guesses_doesnt_keep_the_operator_out(kernel: Kernel) -> None:
    link = link_of(kernel)
    browser = Browser(urlsplit(link).netloc)
    for number in range(20):
        key = {**key_of(link), **({"id": f"{number:016x}"} if number % 2 else {"key": "guessed"})}
        with browser.connect() as tab:
            if tab.begin(key)[1] is not None:
                tab.send({"proof": "0" * 64})
            assert tab.wait_closed() == 4401

    browser.log_in(link)


def test_another_site_can_only_open_a_page(browser: Browser) -> None:
    for destination in ("image", "iframe", "empty", "script"):
        headers = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": destination}
        assert browser.get("/", **headers)[0] == 403
        assert browser.get("/static/app.js", **{**headers, "Sec_Fetch_Site": "same-site"})[0] == 403
    assert browser.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200


def test_odd_names_of_the_host_are_refused(browser: Browser) -> None:
    for host in (
        *(
            "localhost.",
            "user@127.0.0.1",
            "127.0.0.1@evil.example",
            "127.0.0.1:80:80",
            "[::1",
            "::1",
            "127.1",
            "0.0.0.0",
        ),
        *("agentos-.localhost", "agentos-0123456789abcdef.localhost.evil.example", "evil.localhost"),
        *("localhost,evil.example", "localhost/evil", "127.0.0.1:", "127.0.0.1:x"),
    ):
        assert browser.get("/", Host=host)[0] in (400, 403), host
    port = browser.netloc.partition(":")[2]
    for host in (
        f"agentos-0123456789abcdef.localhost:{port}",
        f"localhost:{port}",
        f"LOCALHOST:{port}",
        f"[::1]:{port}",
    ):
        assert browser.get("/", Host=host)[0] == 200, host


def test_odd_origins_are_refused(browser: Browser) -> None:
    netloc = browser.netloc
    for origin in (
        f"http://user@{netloc}",
        f"http://{netloc}/",
        f"ftp://{netloc}",
        netloc,
        f"http://localhost:{netloc[-5:]}",
    ):
        with browser.connect(origin) as tab:
            assert tab.closed is not None, origin
        assert browser.get("/", Origin=origin)[0] == 403, origin
    assert browser.get("/")[0] == 200


def test_pages_of_viewers_dont_keep_the_operator_out(kernel: Kernel, browser: Browser) -> None:
    reader = browser_of(kernel, "viewer")
    with ExitStack() as pages:
        viewed = [pages.enter_context(reader.open_page()) for _ in range(17)]
        assert [page.closed for page in viewed[:16]] == [None] * 16
        assert viewed[16].wait_closed() == 4429
        tab = pages.enter_context(browser.open_page())
        tab.wait(lambda shown: shown["role"] == "operator")


def test_what_a_viewer_asks_is_audited_under_its_links_name(kernel: Kernel, browser: Browser) -> None:
    reader = browser_of(kernel, "viewer")
    with reader.open_page() as page, browser.open_page() as tab:
        own = page.ask({"type": "sessions", "id": 900})["own"]
        assert page.call("EXEC", command="id")["code"] == "permission_denied"

        def refused() -> list[str]:
            entries = tab.call("GET_AUDIT_LOG", limit=100)["entries"]
            return [entry["name"] for entry in entries if entry["call"] == "EXEC"]

        until(lambda: f"web:viewer:{own}" in refused(), "the refusal is in the audit log")
