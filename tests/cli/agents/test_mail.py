"""``agentos mail``: the mailboxes that aren't empty, what waits in one, and what became of messages that are named."""

import json
import re

from click.testing import CliRunner, Result

from agentos.userland.cli.main import cli
from tests.support.kernel import Kernel, until
from tests.support.wire import RECV, REGISTER, SEND, Wire
from tests.system.agents import up


def run(kernel: Kernel, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["mail", *arguments, "--socket", kernel.socket])


def fill(wire: Wire, name: str, texts: list[str]) -> list[int]:
    """Messages in the mailbox ``name`` of this connection, of which the first is leased; returns their ids."""
    up(wire.call(REGISTER, {"name": name}))
    for text in texts:
        up(wire.call(SEND, {"to_name": name, "message": text}))
    [leased] = up(wire.call(RECV, {"max": 1, "lease": 3600}))["messages"]
    first: int = leased["id"]
    return [first + number for number in range(len(texts))]


def test_without_a_name_it_lists_the_mailboxes_that_are_not_empty(kernel: Kernel) -> None:
    with kernel.connect() as one, kernel.connect() as other:
        fill(one, "few", ["a"])
        fill(other, "many", ["a", "b", "c"])

        head, *rows = run(kernel).output.splitlines()
        found = json.loads(run(kernel, "--json").output)

    assert head.split() == ["NAME", "WAITING", "LEASED", "DEAD", "SIZE", "OLDEST", "KEPT"]
    assert [row.split()[:4] for row in rows] == [["many", "2", "1", "-"], ["few", "-", "1", "-"]]
    assert all(row.endswith("memory") for row in rows)
    assert [(box["name"], box["waiting"], box["size"]) for box in found["mailboxes"]] == [("many", 2, 9), ("few", 0, 3)]
    nothing = "no message waits, and there are no dead letters\n"
    until(lambda: run(kernel).output == nothing, "the mailboxes have ended with their connections")
    assert run(kernel, "--dead").exit_code == 2


def test_a_leased_message_says_for_how_long_and_stays(kernel: Kernel) -> None:
    with kernel.connect() as wire:
        leased, waiting = fill(wire, "box", ["a", "b"])

        first, second = run(kernel, "box").output.splitlines()
        refused = run(kernel, "box", "--drop", str(leased), "--drop", str(waiting))

        assert re.search(r", attempt 1, leased for (59m\d*s?|1h) more: \"a\"", first), first
        assert second.endswith(': "b"')
        assert refused.exit_code == 1
        assert "dropped 1 of 2: the others don't wait: a leased one stays" in refused.output
        assert run(kernel, "box", "--requeue", "7").exit_code == 1
        assert "leased for" in run(kernel, "box").output
