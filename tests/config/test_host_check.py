"""What a valid file asks for and its agents won't have."""

import sys
from pathlib import Path

import pytest

from agentos.config.host_check import (
    find_packages,
    missing_notify_programs,
    unreachable_files,
    unreadable_secrets,
    unstartable_programs,
    unusable_repositories,
)
from tests.config.saying import agent, loaded


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ('command = ["node", "client.js"]', 'set code = "." and write "/agent/client.js"'),
        ('command = ["node", "lib/x.js"]', 'set code = "." and write "/agent/lib/x.js"'),
        ('command = ["node", "../x.js"]', 'set code = "{outside}" and write "/agent/x.js"'),
        ('script = "a.py"\nargs = ["client.js"]', 'set code = "." and write "/agent/client.js"'),
        ('command = ["node", "client.js"]\ncode = "."', 'write "/agent/client.js"'),
        ('command = ["node", "client.js"]\ncode = "lib"', "copy it to {home}/lib, which the jail has as /agent"),
        ('command = ["node", "client.js"]\nworkspace = "lib"', 'set code = "." and write "/agent/client.js"'),
        (
            'script = "a.py"\nhealth = { command = ["node", "client.js"] }',
            'set code = "." and write "/agent/client.js"',
        ),
    ],
)
def test_a_file_of_the_hosts_that_a_jail_lacks(place: Path, lines: str, remedy: str) -> None:
    [said] = unreachable_files(loaded(agent(lines)))

    assert said.endswith(remedy.format(home=place, outside=place.parent))
    assert said.startswith("w would not find ")


@pytest.mark.parametrize(
    "lines",
    [
        'command = ["node", "/agent/client.js"]\ncode = "."',
        'command = ["node", "client.js"]\ncode = "."\ncwd = "/agent"',
        'command = ["node", "client.js"]\nworkspace = "."',
        'command = ["node", "client.js"]\nisolation = "none"',
        'command = ["sh", "-c", "true", "/usr/bin/env", "lib", "new.txt"]',
        'command = ["./client.js"]',
        'script = "a.py"\nhealth = { command = ["/bin/true"] }',
        'script = "a.py"\nhealth = { command = ["pgrep", "python3"] }',
        'script = "client.js"\nhealth = { command = ["/agent/client.js"] }',
    ],
)
def test_a_file_that_the_agent_finds(place: Path, lines: str) -> None:
    assert list(unreachable_files(loaded(agent(lines)))) == []


@pytest.mark.parametrize("program", ["/agent/missing", "/usr/bin/no-such-program", "/etc/passwd"])
def test_a_program_of_a_health_check_that_the_jail_lacks(place: Path, program: str) -> None:
    [said] = unreachable_files(loaded(agent(f'script = "a.py"\nhealth = {{ command = ["{program}"] }}')))

    assert said == f"w: health.command: expected a program in its jail, and there is no {program}"


def test_secrets_that_a_kernel_here_could_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "a-value-0123456789")
    monkeypatch.delenv("UNSET", raising=False)
    table = '[[http.secrets]]\nname = "{0}"\nhost = "a.example"\nheader = "Authorization"\nvalue_from = "{1}"\n'
    sources = {"one": "env:SET", "two": "env:UNSET", "three": "file:missing"}

    found = list(unreadable_secrets(loaded("".join(table.format(*each) for each in sources.items()))))

    assert found == [
        "[[http.secrets]] two: value_from: the kernel's environment has no variable UNSET",
        f"[[http.secrets]] three: value_from: {home}/missing can't be read: No such file or directory",
    ]


@pytest.fixture
def place(home: Path) -> Path:
    (home / "lib").mkdir()
    for name in ("client.js", "lib/x.js", "../x.js"):
        (home / name).write_text("")
        (home / name).chmod(0o755)
    return home


def test_the_program_that_notifies_is_looked_for(place: Path) -> None:
    def missing(program: str) -> list[str]:
        text = f'[approvals]\nnotify = ["{program}", "x"]\n[notify]\ncommand = ["{program}"]\n'
        return [*missing_notify_programs(loaded(text))]

    (place / "tell").write_text("#!/bin/sh\n")
    why = "{}: {} is no program that can be run: install it, or name it by its path"
    for program in ("no-such-program", "./tell"):
        assert missing(program) == [why.format(key, program) for key in ("[approvals] notify", "[notify] command")]
    (place / "tell").chmod(0o755)
    assert (missing("./tell"), missing("sh"), [*missing_notify_programs(loaded(""))]) == ([], [], [])


def test_packages_that_a_file_needs_and_this_python_lacks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = loaded('[metrics]\nlisten = "127.0.0.1:9464"\n[otel]\nendpoint = "http://127.0.0.1:4318"\n')
    assert find_packages(config) == {"[metrics]": None, "[otel]": None}
    assert find_packages(loaded("")) == {}

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert find_packages(config) == {
        "[metrics]": "[metrics] listen needs a package that isn't installed: "
        "pip install '.[prometheus]' in AgentOS's repository",
        "[otel]": "[otel] endpoint needs packages that aren't installed: pip install '.[otel]' in AgentOS's repository",
    }


def test_a_token_that_a_kernel_here_could_not_read(home: Path) -> None:
    config = loaded('[metrics]\nlisten = "127.0.0.1:9464"\ntoken_from = "file:none"\n')

    assert list(unreadable_secrets(config)) == [
        f"[metrics] token_from: {home}/none can't be read: No such file or directory"
    ]


PROGRAMS = {
    "CRLF": (b"#!/bin/sh\r\n", "its interpreter /bin/sh isn't there in its jail (its first line ends with CRLF"),
    "CRLF behind env": (b"#!/usr/bin/env python3\r\n", "isn't there in its jail (its first line ends with CRLF"),
    "missing": (b"#!/opt/none/bin/lua\n", "its interpreter /opt/none/bin/lua isn't there in its jail"),
    "missing behind env": (b"#!/usr/bin/env no-such-language\n", "its interpreter no-such-language isn't there"),
    "a byte order mark": (b"\xef\xbb\xbf#!/bin/sh\n", "byte order mark"),
}


@pytest.mark.parametrize(("data", "said"), PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.parametrize(
    "lines", ['command = ["./run.sh"]', 'script = "a.py"\nhealth = { command = ["/agent/run.sh"] }']
)
def test_a_program_whose_interpreter_is_missing(place: Path, lines: str, data: bytes, said: str) -> None:
    (place / "run.sh").write_bytes(data)
    (place / "run.sh").chmod(0o755)
    lines = lines if "health" not in lines else f'{lines}\ncode = "."'

    [found] = unstartable_programs(loaded(agent(lines)))

    assert said in found
    assert "run.sh" in found


@pytest.mark.parametrize("data", [b"#!/bin/sh\n", b"#!/usr/bin/env -S sh -e\n", b"#!/usr/bin/env sh\n"])
def test_a_program_whose_interpreter_is_there(place: Path, data: bytes) -> None:
    (place / "run.sh").write_bytes(data)
    (place / "run.sh").chmod(0o755)

    assert list(unstartable_programs(loaded(agent('command = ["./run.sh"]')))) == []
    assert list(unstartable_programs(loaded(agent('command = ["/bin/true"]')))) == []


@pytest.mark.parametrize(
    ("link", "told"), [("gitdir: ../main/.git/worktrees/lib\n", "a linked worktree"), ("gitdir: data.git", "")]
)
def test_a_workspace_whose_repository_lies_elsewhere(place: Path, link: str, told: str) -> None:
    (place / "lib").mkdir(exist_ok=True)
    (place / "lib/.git").write_text(link)

    found = list(unusable_repositories(loaded(agent('script = "a.py"\nworkspace = "lib"'))))

    assert [told in one for one in found] == ([True] if told else [])
