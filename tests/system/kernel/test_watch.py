"""``agentos run --watch``: what is restarted when files are saved, however an editor does that."""

import os
from collections.abc import Callable, Iterator
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


@pytest.mark.usefixtures("kernels")
def test_an_agent_is_restarted_when_its_script_is_saved(tmp_path: Path) -> None:
    """Its script, or one in the directory of its code that its command runs; and no other agent is."""
    saved: dict[str, tuple[Path, Callable[[Path, str], None]]] = {}
    text = child("other")
    for save in (replace, overwrite):
        for inside in (False, True):
            name = f"{save.__name__}-{inside}"
            script = tmp_path / name / "main.py"
            script.parent.mkdir()
            script.write_text(SAYS.format("old"))
            code = (f'code = "{script.parent}"', 'command = ["python3", "/agent/main.py"]')
            text += child(name, None, *(code if inside else (f'script = "{script}"',)))
            saved[name] = script, save
    with watching(text) as (_, client):
        for name in saved:
            written(client, name, "old")
        before = pids(client)

        for script, save_as in saved.values():
            save_as(script, SAYS.format("new"))

        for name in saved:
            written(client, name, "new")
            assert info(client, name)["restarts"] == 0
        assert pids(client)["other"] == before["other"]


@pytest.mark.usefixtures("kernels")
def test_neither_a_stopped_agent_nor_a_script_that_cannot_be_parsed_is_started(tmp_path: Path) -> None:
    names = ("broken", "stopped", "beside")
    scripts = {name: tmp_path / f"{name}.py" for name in names}
    for path in scripts.values():
        path.write_text(SAYS.format("old"))
    with watching("".join(child(name, None, f'script = "{scripts[name]}"') for name in names)) as (kernel, client):
        written(client, "broken", "old")
        client.stop("stopped")
        before = pids(client)
        scripts["broken"].write_text("import time\nwhile (True")
        kernel.wait_line(r"broken\.py: line 2: .*; broken goes on with what it has")
        assert pids(client) == before

        for path in scripts.values():
            path.write_text(SAYS.format("new"))

        for name in ("broken", "beside"):
            written(client, name, "new")
        assert (info(client, "stopped")["state"], info(client, "stopped")["restarts"]) == ("stopped", 0)


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
