"""``agentos run --watch``: what is restarted when files are saved, however an editor does that."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, until
from tests.system.agents import in_state, info, written
from tests.system.lives.test_containers import child
from tests.system.lives.test_start_stop import pids

SAYS = "import time\nprint({!r}, flush=True)\ntime.sleep(1000)\n"


@contextmanager
def watching(toml: str) -> Iterator[tuple[Kernel, AgentOSClient]]:
    kernel = Kernel(toml, options=["--watch"])
    try:
        kernel.wait_ready()
        with kernel.client() as client:
            yield kernel, client
        kernel.stop()
    finally:
        kernel.clean_up()


def replace(path: Path, text: str) -> None:
    """Save as an editor that writes a new file and renames it."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    os.replace(new, path)


def overwrite(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.mark.parametrize("save", [replace, overwrite])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.usefixtures("kernels")
def test_an_agent_is_restarted_when_its_script_is_saved(tmp_path: Path, save: object, inside: bool) -> None:
    script = tmp_path / "main.py"
    script.write_text(SAYS.format("old"))
    by = [f'code = "{tmp_path}"', 'command = ["python3", "/agent/main.py"]'] if inside else [f'script = "{script}"']
    with watching(child("a", None, *by) + child("b")) as (_, client):
        written(client, "a", "old")
        before = pids(client)

        save(script, SAYS.format("new"))  # type: ignore[operator]

        written(client, "a", "new")
        assert (pids(client)["b"], info(client, "a")["restarts"]) == (before["b"], 0)


@pytest.mark.usefixtures("kernels")
def test_a_script_that_cannot_be_parsed_restarts_nothing_until_it_can(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text(SAYS.format("old"))
    with watching(child("a", None, f'script = "{script}"')) as (kernel, client):
        written(client, "a", "old")
        before = pids(client)
        script.write_text("import time\nwhile (True")
        kernel.wait_line(r"a\.py: line 2: .*; a goes on with what it has")
        assert pids(client) == before

        script.write_text(SAYS.format("new"))

        written(client, "a", "new")


@pytest.mark.usefixtures("kernels")
def test_a_stopped_agent_is_not_started_by_its_script(tmp_path: Path) -> None:
    script, other = tmp_path / "a.py", tmp_path / "b.py"
    for path in (script, other):
        path.write_text(SAYS.format("old"))
    both = child("a", None, f'script = "{script}"') + child("b", None, f'script = "{other}"')
    with watching(both) as (_, client):
        client.stop("a")
        script.write_text(SAYS.format("new"))
        other.write_text(SAYS.format("new"))

        written(client, "b", "new")

        assert (info(client, "a")["state"], info(client, "a")["restarts"]) == ("stopped", 0)


@pytest.mark.usefixtures("kernels")
def test_the_configuration_is_reloaded_when_it_is_saved() -> None:
    with watching(child("a")) as (kernel, client):
        before, file = pids(client), kernel.place / "agentos.toml"
        replace(file, child("a") + child("b").replace('"b"', "7"))
        kernel.wait_line("nothing was reloaded: .*name: expected a string, got 7")
        assert pids(client) == before

        replace(file, child("a") + child("b"))

        until(lambda: len(client.list_agents()) == 2, "the new agent is there")
        in_state(client, "b", "running")
        assert pids(client)["a"] == before["a"]
