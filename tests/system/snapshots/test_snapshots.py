"""Snapshots of agents that work in overlays, and going back to them."""

import json
from pathlib import Path

from tests.support.kernel import Kernel, until
from tests.system.agents import info, up

from .conftest import BEFORE, Agentos, fetch, files, run, see


def test_an_agent_goes_back_to_a_snapshot_that_was_taken_while_it_ran(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, "import os\nopen('a.txt', 'w').write('one')\nos.unlink('sub/b.txt')\nos.mkdir('d')")
        pid = info(client, "worker")["pid"]
        taken = up(client.snapshot("worker", "one"))
        assert taken["paths"] == 4
        run(client, "open('a.txt', 'w').write('two')\nopen('d/x', 'w').write('x')\nopen('sub/b.txt', 'w').write('B')")
        assert info(client, "worker")["pid"] == pid

        assert up(client.rollback("worker", "one"))["restarted"] is True

        assert see(client) == {"a.txt": "one"}
        shown = {one["path"]: one["change"] for one in client.diff("worker")["changes"]}
        assert shown == {"a.txt": "changed", "d": "created", "sub/b.txt": "deleted"}
        run(client, "open('a.txt', 'w').write('three')")
        up(client.apply("worker", client.diff("worker")["digest"]))
    assert files(project) == {"a.txt": "three"}


def test_a_stopped_agent_is_sealed_and_goes_back_without_a_start(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('one')")
        client.stop("worker")
        first = up(client.snapshot("worker"))["snapshot"]
        client.start("worker")
        run(client, "open('a.txt', 'w').write('two')\nopen('new', 'w').write('')")
        client.stop("worker")
        second = up(client.snapshot("worker", "second"))["snapshot"]
        assert up(client.snapshot("worker", "same"))["paths"] == 0
        assert {one["path"] for one in client.diff("worker")["changes"]} == {"a.txt", "new"}

        assert up(client.rollback("worker", first))["restarted"] is False

        assert {one["path"] for one in client.diff("worker")["changes"]} == {"a.txt"}
        client.start("worker")
        assert see(client) == {**BEFORE, "a.txt": "one"}
        up(client.rollback("worker", "second"))
        assert see(client) == {**BEFORE, "a.txt": "two", "new": ""}
        listed = {one["snapshot"]: one for one in client.snapshots("worker")["snapshots"]}
        assert listed[second]["parent"] == first
    assert files(project) == BEFORE


TAKE_NEXT = """
import os, time
while not os.path.exists("/workspace/go"):
    time.sleep(0.01)
next = me.recv_messages(1, lease=600)["messages"][0]
me.ack_messages([next["id"]])
"""


def test_unread_mail_comes_back_unless_it_was_acknowledged(worker: Kernel) -> None:
    def send(code: str) -> None:
        up(client.send_message({"method": "run", "with": {"code": code}}, to="worker"))

    with worker.client() as client:
        run(client, "")
        send(TAKE_NEXT)
        until(lambda: client.mail("worker")["count"] == 0, "it works on the first")
        send("it is acknowledged")
        send("seen = True")
        up(client.pause("worker"))
        up(client.snapshot("worker", "mail"))
        assert info(client, "worker")["state"] == "paused"
        acknowledged, read = [one["id"] for one in client.mail("worker")["messages"]]
        up(client.resume("worker"))
        up(client.exec(["touch", "/workspace/go"], name="worker"))
        until(lambda: client.mail("worker")["count"] == 0, "it has read all")
        client.stop("worker")

        for _ in range(2):
            up(client.rollback("worker", "mail"))

            assert [one["id"] for one in client.mail("worker")["messages"]] == [read] != [acknowledged]
    worker.kill()
    worker.start_again()
    with worker.client() as client:
        until(lambda: client.mail("worker")["count"] == 0, "the next kernel's has read it, too")


def test_by_the_command_line_files_come_back_and_keys_with_new_versions(worker: Kernel, agentos: Agentos) -> None:
    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('one')")
        run(client, "me.store('k', 'old', scope='agent'); me.store('gone', 1, scope='agent', ttl=3600)")

        taken = agentos("snapshot", "worker", "before")
        assert (taken.stderr, taken.returncode) == ("", 0)
        assert taken.stdout.startswith("worker@before is kept: 1 path, ")
        assert agentos("snapshot", "worker", "before").returncode == 1
        run(client, "open('a.txt', 'w').write('two')")
        run(client, "me.store('k', 'new', scope='agent'); me.delete('gone'); me.store('later', 2, scope='agent')")
        version = fetch(client, "k")["version"]

        back = agentos("rollback", "worker@before")

        assert back.stdout == "worker works on worker@before, and was restarted\n"
        assert see(client)["a.txt"] == "one"
        found = fetch(client, "k")
        assert (found["value"], found["version"] > version) == ("old", True)
        assert fetch(client, "gone")["value"] == 1
        assert fetch(client, "later")["value"] is None
        listed = agentos("snapshots", "worker").stdout
        number = json.loads(agentos("snapshots", "--json").stdout)["snapshots"][0]["snapshot"]
        assert [line.split()[0] for line in listed.splitlines()] == ["SNAPSHOT", "worker@before"]
        assert agentos("snapshots", "--remove", number).stdout == f"{number} is removed\nno snapshots\n"
        assert see(client)["a.txt"] == "one"
        gone = agentos("rollback", "worker@before")
        assert (gone.returncode, "worker has no snapshot before" in gone.stderr) == (1, True)
