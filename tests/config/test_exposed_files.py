"""Files that the host runs or trusts, in the workspace of an agent."""

from pathlib import Path

import pytest

from agentos.config.exposed_files import find_exposed_files
from tests.config.saying import loaded

WORKER = '[[supervisor.children]]\nname = "worker"\ncommand = ["sleep", "9"]\nworkspace = "{}"\n'
BARE = '[[supervisor.children]]\nname = "bare"\nisolation = "none"\n'
SECRET = '[[http.secrets]]\nname = "hub"\nhost = "a.example"\nheader = "Authorization"\nvalue_from = "file:work/key"\n'
SERVER = '[mcp.servers.files]\ncommand = ["x"]\nenv = { KEY = "file:work/key" }\n'


@pytest.fixture(autouse=True)
def place(home: Path) -> Path:
    (home / "work" / "deep").mkdir(parents=True)
    (home / "out").mkdir()
    for name in ("work/a.py", "work/deep/run", "work/key", "work/.envrc", "out/a.py"):
        (home / name).write_text("#!/bin/sh\n")
        (home / name).chmod(0o755)
    (home / "out" / "link.py").symlink_to("../work/a.py")
    return home


@pytest.mark.parametrize(
    ("lines", "file", "begins", "effect"),
    [
        (f'{BARE}script = "work/a.py"', "work/a.py", "bare, which has no jail", "run programs"),
        (f'{BARE}command = ["sh", "work/deep/run"]', "work/deep/run", "bare, which has no jail", "run programs"),
        (f'{BARE}script = "out/link.py"', "out/link.py", "bare, which has no jail", "run programs"),
        ('[approvals]\nnotify = ["work/deep/run"]', "work/deep/run", "[approvals] notify", "run programs"),
        (SECRET, "work/key", "[[http.secrets]] hub", "read and change"),
        ('[llm]\nprovider = "offline"\ncassette = "work/key"', "work/key", "[llm] cassette", "read and change"),
        (SERVER, "work/key", "[mcp.servers.files] env", "read and change"),
    ],
)
def test_a_file_of_the_hosts_that_an_agent_can_write_is_named(
    place: Path, lines: str, file: str, begins: str, effect: str
) -> None:
    [said] = find_exposed_files(loaded(WORKER.format("work") + lines))

    assert said.startswith(f"{begins}: {place}/{file} is in the workspace of worker, which can "), said
    assert effect in said


@pytest.mark.parametrize("workspace", ["tmp", "keep", "out"])
@pytest.mark.parametrize("lines", [f'{BARE}script = "work/a.py"', f'{BARE}command = ["sh", "work/.envrc"]', SECRET])
def test_a_file_that_no_agent_can_write_is_not(workspace: str, lines: str) -> None:
    assert list(find_exposed_files(loaded(WORKER.format(workspace) + lines))) == []


def test_a_protected_name_is_not(place: Path) -> None:
    assert list(find_exposed_files(loaded(WORKER.format("work") + f'{BARE}command = ["sh", "work/.envrc"]'))) == []
