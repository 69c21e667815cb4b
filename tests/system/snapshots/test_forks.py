"""Forks go on from a moment of an agent, each in an overlay of its own, and the agent goes on as well."""

from pathlib import Path

from tests.support.kernel import Kernel
from tests.support.wire import PATIENCE
from tests.system.agents import ask, in_state, info, up

from .conftest import BEFORE, Agentos, fetch, files, run, see


def list_layers(kernel: Kernel) -> set[str]:
    return {path.parent.name for path in (kernel.state_dir / "layers").glob("*/l-*")}


def test_forks_go_on_from_a_snapshot_apart_from_each_other(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('one')\nme.store('k', 'one', scope='agent')")
        up(client.snapshot("worker", "one"))
        run(client, "open('a.txt', 'w').write('two')\nme.store('k', 'two', scope='agent')")

        forked = up(client.fork("worker", "one", count=2))["agents"]

        assert [one["name"] for one in forked] == ["worker-1", "worker-2"]
        for name in ("worker-1", "worker-2"):
            assert see(client, name) == {**BEFORE, "a.txt": "one"}
            assert fetch(client, "k", name=name)["value"] == "one"
        run(client, "open('a.txt', 'w').write('mine')\nme.store('k', 'mine', scope='agent')", "worker-1")
        assert see(client, "worker-2")["a.txt"] == "one"
        assert see(client)["a.txt"] == "two"
        assert fetch(client, "k", name="worker-2")["value"] == "one"
        assert client.inspect("worker-1")["forked_from"] == "worker@one"
        assert client.inspect("worker")["forked_from"] is None
        assert [one["path"] for one in client.diff("worker-1")["changes"]] == ["a.txt"]

        up(client.apply("worker-1", client.diff("worker-1")["digest"]))

    assert files(project) == {**BEFORE, "a.txt": "mine"}


def test_a_fork_of_a_fork_from_now_keeps_files_whose_snapshots_are_gone(worker: Kernel, project: Path) -> None:
    with worker.client() as client:
        run(client, "open('first', 'w').write('1')")
        [first] = up(client.fork("worker"))["agents"]
        run(client, "open('second', 'w').write('2')", first["name"])
        up(client.snapshot(first["name"], "s"))
        [second] = up(client.fork(first["name"], "s", names=["other"]))["agents"]
        assert second["name"] == "other"
        assert client.inspect(first["name"])["forked_from"] == "worker"
        up(client.snapshots(first["name"], remove="s"))
        up(client.rollback("worker", "start"))
        client.kill(first["name"])
        up(client.rollback(first["name"], "start"))

        assert see(client, "other") == {**BEFORE, "first": "1", "second": "2"}
        assert client.snapshots()["snapshots"] == []
    worker.kill()
    worker.start_again()
    with worker.client() as client:
        assert {one["path"] for one in client.diff("other")["changes"]} == {"first", "second"}
        up(client.apply("other", client.diff("other")["digest"]))
        up(client.rollback("other", "start"))
    assert files(project) == {**BEFORE, "first": "1", "second": "2"}


def test_a_fork_that_can_not_be_made_leaves_nothing(worker: Kernel) -> None:
    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('one')\nme.store('k', 1, scope='agent')")
        up(client.snapshot("worker", "one"))
        layers = list_layers(worker)

        assert client.fork("worker", "none")["code"] == "not_found"
        assert client.fork("stranger")["code"] == "not_found"
        assert client.fork("worker", names=["x", "x"], count=2)["code"] == "bad_request"
        assert client.fork("worker", count=33)["code"] == "bad_request"
        assert client.fork("worker", names=["a b"])["code"] == "bad_request"
        assert client.fork("worker", "one", count=2, names=["good", "worker"])["code"] == "already_exists"

        assert list_layers(worker) == layers
        assert info(client, "good")["running"] is False
        assert [one["label"] for one in client.snapshots()["snapshots"]] == ["one"]
        number = info(client, "worker")["id"]
        for method in ("fork", "snapshots"):
            assert ask(client, number, method, name="worker")["code"] == "permission_denied"


def test_forks_by_the_command_line_have_rights_and_budgets_of_their_own_and_no_mail(
    worker: Kernel, agentos: Agentos
) -> None:
    with worker.client() as client:
        run(client, "open('a.txt', 'w').write('one')")
        client.pause("worker")
        for _ in range(3):
            up(client.send_message({"method": "run", "with": {"code": ""}}, to="worker"))
        made = agentos("fork", "worker", "-n", "2")
        client.resume("worker")
        for _ in range(3):
            assert client.recv_messages(1, timeout=PATIENCE)["messages"]

        assert made.stderr == ""
        assert [word for word in made.stdout.split() if word.startswith("worker-")] == ["worker-1", "worker-2"]
        in_state(client, "worker-1", "running")
        assert client.mail("worker-1")["count"] == 0
        fork, original = (client.get_permissions(info(client, name)["id"]) for name in ("worker-1", "worker"))
        assert fork["permissions"] == original["permissions"]
        assert client.inspect("worker-1")["supervisor"].startswith("root/spawned/")
        assert see(client, "worker-2")["a.txt"] == "one"
        assert agentos("fork", "worker@").returncode == 2
        assert "fork of" in agentos("inspect", "worker-2").stdout


def test_a_fork_of_an_agent_that_narrowed_itself_is_refused_and_asked_about_what_that_one_was(worker: Kernel) -> None:
    """The rights that it had chosen alone, without what the operator had denied, would be more than its own."""
    allowed = {"level": "sandboxed", "allow": {"send": ["*"], "state_write": ["*"]}}
    with worker.client() as client:
        run(client, "")
        number = info(client, "worker")["id"]
        denied = {"deny": {"state_write": ["secret/*"]}, "ask": {"state_write": ["asked/*"]}}
        up(client.set_permissions({**allowed, **denied}, agent_id=number))
        up(ask(client, number, "set_permissions", permissions=allowed))

        [fork] = up(client.fork("worker"))["agents"]

        for one in (number, fork["id"]):
            keys = ("secret/a", "asked/a", "a")
            found = [up(client.explain(one, "STORE", {"key": key, "scope": "global"})) for key in keys]
            assert [each["decision"] for each in found] == ["deny", "ask", "allow"]
