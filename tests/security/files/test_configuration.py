"""An agent writes the configuration file of its kernel, or one for the operator's next command in its workspace."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.project import find_project
from tests.security.hostile import attack, begin, told
from tests.support.kernel import Kernel, until
from tests.system.agents import up

EVIL = '\n[[supervisor.children]]\nname = "evil"\nisolation = "none"\ncommand = ["sleep", "1000"]\n'
TOML = '[llm]\nprovider = "offline"\n'
TRIES = """
made = []
for name in NAMES:
    for attempt in (lambda: open(name, "a").write(EVIL), lambda: os.unlink(name), lambda: os.truncate(name, 0),
        lambda: os.rename("new", name), lambda: os.rename(name, "away"),
        lambda: os.symlink("new", name), lambda: os.link(name, "linked"), lambda: os.chmod(name, 0o777)):
        open("new", "w").write(EVIL)
        try: attempt()
        except OSError: continue
        made.append([name, attempt.__code__.co_names])
    exchange("new", name)
open("allowed", "w").write("harmless")
say(made)
"""
WRITES = """
while True:
    with open("agentos.toml", "r") as file:
        text = file.read()
    if "saved" in text and "evil" not in text:
        try:
            with open("agentos.toml", "a") as file: file.write(EVIL)
            say(["written"])
        except OSError: pass
"""


@pytest.fixture
def project(entered: Path) -> Path:
    """A directory with the kernel's configuration, which is an agent's workspace."""
    path = Path(os.path.realpath(entered / "project"))
    path.mkdir()
    (path / "agentos.toml").write_text(TOML)
    (path / "kernel.toml").write_text(TOML)
    path.chmod(0o777)
    return path


def serve(*options: str) -> Iterator[Kernel]:
    kernel = Kernel(options=options)
    try:
        kernel.wait_ready()
        yield kernel
        kernel.stop()
    finally:
        kernel.clean_up()


@pytest.fixture(params=["agentos.toml", "kernel.toml"])
def watching(kernels: None, project: Path, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """A kernel that reloads the project's file when it is saved."""
    yield from serve(str(project / request.param), "--watch")


def names(client: AgentOSClient) -> list[str]:
    return [agent["name"] for agent in client.list_agents(all=True)]


def test_an_agent_cannot_add_one_without_a_jail_by_the_configuration_file(watching: Kernel, project: Path) -> None:
    code = f"NAMES, EVIL = {['agentos.toml', 'kernel.toml']!r}, {EVIL!r}\n{TRIES}"
    with watching.client() as client:
        kernels = [
            file for file in ("agentos.toml", "kernel.toml") if f"{project}/{file}" == up(client.status())["config"]
        ]
        made = attack(watching, client, "planter", code, workspace=str(project))

        assert kernels
        assert [name for name, _ in made if name in ("agentos.toml", *kernels)] == []
        assert [(project / file).read_text() for file in kernels] == [TOML]
        assert up(client.reload())["changes"] == []
        assert names(client) == ["planter"]


def test_an_agent_cannot_write_a_configuration_for_the_operators_next_command(
    kernel: Kernel, client: AgentOSClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in project.iterdir():
        file.unlink()
    monkeypatch.chdir(project)
    code = f"NAMES, EVIL = ['agentos.toml'], {EVIL!r}\n{TRIES}"

    made = attack(kernel, client, "planter", code, workspace=str(project))

    assert made == []
    assert not find_project().exists
    client.kill("planter", grace=0)
    until(lambda: set(os.listdir(project)) <= {"allowed", "new"}, f"no stub is left: {os.listdir(project)}")
    assert not find_project().exists


@pytest.mark.usefixtures("kernels")
def test_a_configuration_below_the_top_of_a_workspace_is_refused(project: Path) -> None:
    for kernel in serve(str(project / "agentos.toml")):
        with kernel.client() as client:
            reply = client.spawn("planter", command=["sleep", "1000"], workspace=str(project.parent))

            assert reply["code"] == "unavailable", reply
            assert f"{project}/agentos.toml, the kernel's configuration file, is in a directory of it" in reply["error"]


@pytest.mark.usefixtures("kernels")
def test_what_an_agent_writes_to_a_file_that_an_editor_has_replaced_is_not_loaded(project: Path) -> None:
    file = project / "agentos.toml"
    for kernel in serve(str(file), "--watch"):
        with kernel.client() as client:
            begin(kernel, client, "waits", f"EVIL = {EVIL!r}\n{WRITES}", workspace=str(project))
            (project / "new.toml").write_text(f"{TOML}# saved\n")
            (project / "new.toml").chmod(0o666)
            (project / "new.toml").replace(file)

            assert told(client, "waits") == ["written"]
            assert EVIL in file.read_text()
            kernel.wait_line(r"nothing was reloaded: .*/agentos\.toml was replaced")
            kernel.wait_line(r"waits: .*agentos\.toml in its workspace, replaced by the host")
            assert names(client) == ["waits"]

            file.write_text(f"{TOML}# saved, and looked at\n")
            up(client.reload())
            assert names(client) == ["waits"]
