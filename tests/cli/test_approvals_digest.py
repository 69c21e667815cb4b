"""``approve``, ``deny`` and ``approvals --watch`` decide what was shown: they send its digest with the id."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define, field
from click import Command
from click.testing import CliRunner

from agentos.userland.cli import approvals, approvals_watch
from agentos.userland.cli.approvals_watch import Watch

REQUEST = {"id": 3, "agent": "a", "call": "READ", "about": "/x", "shown": "READ /x", "digest": "d1", "rule": "ask"}


@define
class Client:
    """A kernel in which one request waits; ``decided`` are the fields of each DECIDE."""

    decided: list[Mapping[str, Any]] = field(factory=list)

    def approvals(self) -> Mapping[str, Any]:
        return {"success": True, "pending": [REQUEST], "omitted": 0}

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
