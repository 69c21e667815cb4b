"""A jailed agent's SPAWN names a place of the host's, as script, code, workspace or cwd, and gets none of them."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel
from tests.support.wire import HELLO, READ, SPAWN, Wire
from tests.system.agents import lines

SAYS = "print(open('/agent/secret.txt').read() if __import__('os').path.exists('/agent/secret.txt') else 'started')\n"
SLEEP: dict[str, Any] = {"command": ["sleep", "1000"]}


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the host's that everybody may enter; not in /tmp, for an agent has one of its own."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="aos-") as name:
        directory = Path(name)
        directory.chmod(0o777)
        (directory / "script.py").write_text(SAYS)
        (directory / "secret.txt").write_text("the secret")
        yield directory


@pytest.mark.parametrize("permissions", [None, {"level": "sandboxed", "allow": {"read": ["/**"], "write": ["/**"]}}])
@pytest.mark.parametrize("name", ["script", "code", "workspace", "cwd", "command", "python"])
def test_no_place_of_the_hosts_comes_with_a_child(
    kernel: Kernel, client: AgentOSClient, place: Path, name: str, permissions: dict[str, object] | None
) -> None:
    up = "/workspace/" + os.path.relpath(place, "/workspace")
    host: dict[str, list[dict[str, Any]]] = {
        "script": [{"script": f"{root}/script.py"} for root in (place, up)],
        "code": [{"code": str(root), "script": "script.py"} for root in (place, up)],
        "workspace": [{"workspace": str(root), **SLEEP} for root in (place, up, f"host:{place}")],
        "cwd": [{"cwd": str(root), **SLEEP} for root in (place, up)],
        "command": [{"command": [f"{root}/script.py"]} for root in (place, up)],
        "python": [{"python": f"{root}/script.py", "script": "/agent/x.py"} for root in (place, up)],
    }
    parent = client.spawn(f"asks-{name}", permissions=permissions, **SLEEP)["id"]

    with kernel.connect_as(parent) as wire:
        replies = [wire.call(SPAWN, {"name": "child", **fields}) for fields in host[name]]

    assert [reply for reply in replies if reply["success"]] == []
    assert {reply["code"] for reply in replies} <= {"permission_denied", "bad_request", "not_found"}
    assert "the secret" not in str(replies)
    assert [agent for agent in client.list_agents(all=True) if agent["name"] == "child"] == []
    assert sorted(os.listdir(place)) == ["script.py", "secret.txt"]


def test_a_link_in_its_own_files_leads_a_child_nowhere_either(
    kernel: Kernel, client: AgentOSClient, place: Path
) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for name, target in (("script.py", place / "script.py"), ("code", place), ("workspace", place), ("cwd", place)):
        (shared / name).symlink_to(target)
    asks: tuple[dict[str, Any], ...] = (
        {"script": "script.py"},
        {"script": "code/script.py"},
        {"code": "code", "script": "script.py"},
        {"workspace": "workspace", **SLEEP},
        {"command": ["/workspace/script.py"]},
        {"cwd": "cwd", **SLEEP},
    )
    parent = client.spawn("linked", workspace=str(shared), **SLEEP)["id"]

    with kernel.connect_as(parent) as wire:
        replies = [wire.call(SPAWN, {"name": f"child-{n}", **fields}) for n, fields in enumerate(asks)]

    assert [reply for reply in replies if reply["success"]] == []
    for agent in client.list_agents(all=True):
        if agent["name"].startswith("child-"):
            assert "the secret" not in lines(client, agent["name"])


def refused_alike(wire: Wire, path: Path, **fields: Any) -> None:
    """READ refuses ``path``, and so does a SPAWN that would show it, by the same words."""
    read = wire.call(READ, {"path": str(path)})
    spawned = wire.call(SPAWN, {"name": "shown", **fields})

    why = "has 2 names (hard links), and another one may lie where you may not look"
    assert (read["code"], spawned["code"]) == ("permission_denied", "permission_denied"), (read, spawned)
    assert f"{path}: {why}" in read["error"]
    assert f"{path}: {why}" in spawned["error"]


def linked(place: Path) -> Path:
    """A script that has another name, where not everybody may look."""
    (place / "hidden").mkdir()
    (place / "open").mkdir()
    (place / "hidden" / "script.py").write_text("import time\ntime.sleep(1000)\n")
    (place / "hidden" / "script.py").chmod(0o755)
    os.link(place / "hidden" / "script.py", place / "open" / "script.py")
    return place / "open" / "script.py"


@pytest.mark.parametrize("what", ["script", "command"])
def test_a_guests_spawn_does_not_show_a_hard_linked_file_that_read_refuses(
    kernel: Kernel, client: AgentOSClient, place: Path, what: str
) -> None:
    path = linked(place)
    rules = {"level": "standard", "allow": {"read": [f"{place}/open/**"]}}

    with kernel.connect() as wire:
        assert wire.call(HELLO, {"as": f"visitor-{what}", "permissions": rules})["success"]
        refused_alike(wire, path, **{what: str(path) if what == "script" else [str(path)]})
        (place / "hidden" / "script.py").unlink()
        assert wire.call(READ, {"path": str(path)})["success"]
        if what == "script":
            assert wire.call(SPAWN, {"name": f"shown-{what}", "script": str(path)})["success"]


@pytest.mark.parametrize("what", ["script", "code", "workspace"])
def test_a_spawn_by_an_agent_without_a_jail_does_not_show_one_either(
    kernel: Kernel, client: AgentOSClient, place: Path, what: str
) -> None:
    path = linked(place)
    fields: dict[str, dict[str, Any]] = {
        "script": {"script": str(path)},
        "code": {"code": str(path.parent), **SLEEP},
        "workspace": {"workspace": str(path.parent), **SLEEP},
    }
    rules = {"level": "standard", "allow": {"read": [f"{place}/open/**"]}}
    parent = client.spawn(f"bare-{what}", isolation="none", permissions=rules, **SLEEP)["id"]

    with kernel.connect_as(parent) as wire:
        refused_alike(wire, path, **fields[what])
        (place / "hidden" / "script.py").unlink()
        assert wire.call(SPAWN, {"name": f"shown-{what}", **fields[what]})["success"]


def test_the_operator_may_show_a_hard_linked_file(client: AgentOSClient, place: Path) -> None:
    assert client.spawn("shown-by-operator", str(linked(place)))["success"]
