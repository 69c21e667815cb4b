"""``approve``, ``deny`` and ``approvals --watch`` decide what was shown: they send its digest with the id."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define, field
from click import Command
from click.testing import CliRunner

from agentos.userland.cli.approvals import approvals
from agentos.userland.cli.approvals import watch as approvals_watch
from agentos.userland.cli.approvals.approvals import MAX_ROWS
from agentos.userland.cli.approvals.watch import Watch

REQUEST = {
    "id": 3,
    "agent": "a",
    "path": "a",
    "call": "READ",
    "shown": "READ /x",
    "lines": [["READ ", "/x"]],
    "covers": [],
    "digest": "d1",
    "rule": "ask",
}
LONG = {**REQUEST, "lines": [["READ ", "/x"], *[["| ", "x"]] * MAX_ROWS], "digest": "0123456789abcdef"}


@define
class Client:
    """A kernel in which one request waits; ``decided`` are the fields of each DECIDE."""

    decided: list[Mapping[str, Any]] = field(factory=list)
    request: Mapping[str, Any] = field(factory=lambda: REQUEST)

    def approvals(self) -> Mapping[str, Any]:
        return {"success": True, "pending": [self.request], "omitted": 0}

    def decide(self, id: int, allow: bool, *reason: str | None, **fields: Any) -> Mapping[str, Any]:
        self.decided.append({"id": id, "allow": allow, **fields})
        return {"success": True}


@contextmanager
def connected(client: Client) -> Iterator[Client]:
    yield client


@pytest.mark.parametrize(("command", "allow"), [(approvals.approve, True), (approvals.deny, False)])
def test_a_command_decides_what_was_listed(command: Command, allow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    monkeypatch.setattr(approvals, "kernel", lambda path: connected(client))

    done = CliRunner().invoke(command, ["3"])

    assert done.exit_code == 0, done.output
    assert [(one["id"], one["allow"], one["digest"]) for one in client.decided] == [(3, allow, "d1")]


@pytest.mark.parametrize("answer", ["allow", "deny", "always"])
def test_a_key_decides_what_is_on_the_screen(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    make: Callable[..., object] = lambda *_: connected(client)  # noqa: E731
    monkeypatch.setattr(approvals_watch, "AgentOSClient", make)
    monkeypatch.setattr(Watch, "update", lambda self: None)

    Watch("/socket", None).answer(REQUEST, answer)  # type: ignore[arg-type]

    assert [(one["id"], one["digest"]) for one in client.decided] == [(3, "d1")]


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ((), False),
        (("--digest", "0123"), False),
        (("--digest", "0123456789abff"), False),
        (("--digest", "0123456789ab"), True),
    ],
)
def test_a_long_text_is_allowed_only_by_its_digest(
    given: tuple[str, ...], allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(request=LONG)
    monkeypatch.setattr(approvals, "kernel", lambda path: connected(client))

    done = CliRunner().invoke(approvals.approve, ["3", *given])

    assert (len(client.decided) == 1) == allowed == (done.exit_code == 0), done.output
    assert CliRunner().invoke(approvals.deny, ["3"]).exit_code == 0, "it can be refused unread"


@pytest.mark.parametrize(("answer", "decides"), [("allow", False), ("always", False), ("deny", True)])
def test_no_key_allows_what_was_not_shown_whole(answer: Any, decides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(request=LONG)
    make: Callable[..., object] = lambda *_: connected(client)  # noqa: E731
    monkeypatch.setattr(approvals_watch, "AgentOSClient", make)
    monkeypatch.setattr(Watch, "update", lambda self: None)
    watch = Watch("/socket", None)  # type: ignore[arg-type]
    watch.desk.update([{**LONG, "asked_at": 0.0, "expires_at": 9.0, "caller_present": True}], 0.0)
    watch.show_current()

    watch.answer(LONG, answer)
    assert bool(client.decided) == decides
    watch.show_current(whole=True)
    watch.answer(LONG, answer)

    assert client.decided
