"""What a program on the same host makes of what it has seen: proofs, keys of other uses, another port."""

import secrets
from pathlib import Path
from typing import Any, cast

import trio
import trio.testing

from agentos.userland.web.app import PROOF_SECONDS, Dashboard
from agentos.userland.web.page_files import PageFiles
from agentos.userland.web.proof import Opening
from agentos.userland.web.recordings import Recordings
from agentos.userland.web.sessions import Sessions
from tests.support.kernel import Kernel
from tests.web.conftest import Browser, Tab, browser_of


def closed_after(tab: Tab, message: dict[str, Any]) -> int:
    tab.send(message)
    return tab.wait_closed()


def test_a_proof_is_good_for_one_connection(browser: Browser) -> None:
    key = browser.keys["run"]
    with browser.connect() as tab:
        opening, challenge = tab.begin(key)
        assert challenge is not None
        seen = {"proof": opening.sign(key["key"], "page", challenge["nonce"])}
        tab.send(seen)
        found = tab.next()
        assert found is not None
        assert "keys" in found

    with browser.connect() as tab:
        tab.begin(key)
        assert closed_after(tab, seen) == 4401
    with browser.connect() as tab:  # with the same random number, too
        tab.send({"use": "run", "id": opening.id, "salt": opening.salt, "nonce": opening.nonce})
        assert tab.next() not in (None, challenge)
        assert closed_after(tab, seen) == 4401


def test_the_kernels_own_proof_is_none_of_a_page(browser: Browser) -> None:
    with browser.connect() as tab:
        _, challenge = tab.begin(browser.keys["run"])
        assert challenge is not None
        assert closed_after(tab, {"proof": challenge["proof"]}) == 4401


def test_a_key_proves_nothing_for_another_use(browser: Browser) -> None:
    with browser.open_page():
        pass
    assert set(browser.keys) == {"link", "run", "tab"}
    for use, key in browser.keys.items():
        for named in browser.keys.values():
            if named["use"] == use:
                continue
            with browser.connect() as tab:
                opening, challenge = tab.begin(named)
                if challenge is not None:  # the link was used up
                    proof = opening.sign(key["key"], "page", challenge["nonce"])
                    assert closed_after(tab, {"proof": proof}) == 4401, (use, named["use"])
                else:
                    assert tab.closed == 4401


def test_before_a_proof_nothing_is_done_and_nothing_is_told(kernel: Kernel, browser: Browser) -> None:
    calls: list[Any] = [
        {"type": "call", "id": 1, "call": "SPAWN", "args": {"name": "planted", "command": ["true"]}},
        {"type": "sessions", "id": 1},
        {"proof": "0" * 64},
        {"keys": []},
        [],
        None,
    ]
    for message in calls:
        with browser.connect() as tab:
            assert closed_after(tab, message) == 4401, message
            assert tab.shown == {}
        with browser.connect() as tab:
            tab.begin(browser.keys["run"])
            assert closed_after(tab, message) == 4401, message
            assert tab.shown == {}
    with kernel.client() as client:
        assert all(one["name"] != "planted" for one in client.list_agents(all=True))


def test_no_header_of_a_browsers_logs_in(kernel: Kernel) -> None:
    """Neither its own nor one that a former version gave it."""
    browser = browser_of(kernel)
    _, headers, page = browser.get("/")
    assert "set-cookie" not in headers
    for key in browser.keys.values():
        assert key["key"] not in page
    stranger = Browser(browser.netloc)
    with stranger.connect() as tab:
        opening = Opening("run", browser.keys["run"]["id"], browser.keys["run"]["salt"], secrets.token_hex(8))
        tab.send({"use": opening.use, "id": opening.id, "salt": opening.salt, "nonce": opening.nonce})
        assert closed_after(tab, {"proof": opening.sign("", "page", "")}) == 4401


class Silent:
    """A tab that sends nothing."""

    closed: int | None = None

    async def accept(self) -> None:
        pass

    async def receive_text(self) -> str:
        await trio.sleep_forever()
        raise AssertionError

    async def close(self, code: int, reason: str) -> None:
        self.closed = code


async def test_a_page_that_proves_nothing_in_time_is_closed(autojump_clock: object, tmp_path: Path) -> None:
    dashboard = Dashboard(
        Sessions.load(tmp_path, "0123456789abcdef", ""), cast(Any, None), PageFiles.load(), Recordings(tmp_path)
    )
    tab, began = Silent(), trio.current_time()

    await dashboard.serve_feed(cast(Any, tab))

    assert tab.closed == 4408
    assert trio.current_time() - began == PROOF_SECONDS
