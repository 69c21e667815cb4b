import os
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import astuple

from agentos.agents.spec import AgentSpec, GroupSpec
from agentos.config.load import Config, ConfigError, load
from agentos.config.schema import KernelSettings, UidRange
from agentos_sdk.encoding.codec import CpuShare, Seconds, Size
from agentos_sdk.values import Limits
from supervisors import Backoff
from tests.config.saying import agent, loaded, said
from tests.support.runs.rows import each_row

WHOLE = """
[kernel]
socket = "run/kernel.sock"
state_dir = "/var/lib/agentos"
log_level = "debug"
max_payload = "32M"
max_children = 5
spawn_rate = 2
zygote_timeout = "1m"
waive = ["cpu_quota"]
uids = { first = 200000, count = 1000 }

[supervisor]
strategy = "rest_for_one"
intensity = 3
period = "1m"

[[supervisor.children]]
name = "database"
script = "a.py"
args = ["-v"]
env = { LEVEL = "1" }
ready = "hello"
shutdown = "infinity"
backoff = { first = "100ms", min = "1s", max = "1m", max_failures = 5 }
limits = { memory = "256M", cpu_quota = "50%", max_pids = 20 }
isolation = "best_effort"
network = true
code = "."
workspace = "work"
cwd = "inner"
runtime = "fast"

[[supervisor.children]]
name = "team"
type = "supervisor"
auto_shutdown = "any_significant"
restart = "transient"
shutdown = "30s"

[[supervisor.children.children]]
name = "lead"
type = "agent"
command = ["./tool", "./a.py"]
sandboxed = false
cwd = "work"
restart = "transient"
significant = true

[[supervisor.children.children]]
name = "inner"
type = "supervisor"
children = [{ name = "last", command = ["echo"], python = "./bin/python", workspace = "keep", isolation = "strict" }]
"""


def executable(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    path.chmod(0o755)
    return path


def test_a_whole_file_becomes_the_values_that_run(home: Path) -> None:
    executable(home / "tool")
    executable(home / "bin" / "python")
    (home / "lib" / "python3.11").mkdir(parents=True)
    (home / "lib" / "python3.11" / "os.py").touch()  # by which a prefix is known for one
    (home / "work").mkdir()

    config = loaded(WHOLE)

    assert config.file == home / "agentos.toml"
    assert config.directory == home
    assert config.kernel == KernelSettings(
        socket=str(home / "run/kernel.sock"),
        state_dir="/var/lib/agentos",
        log_level="debug",
        max_payload=Size(32 << 20),
        max_children=5,
        spawn_rate=2.0,
        zygote_timeout=Seconds(60.0),
        waive=("cpu_quota",),
        uids=UidRange(first=200000, count=1000),
    )
    database = AgentSpec(
        "database",
        mailbox="kept",
        script=str(home / "a.py"),
        args=("-v",),
        env={"LEVEL": "1"},
        cwd="/workspace/inner",
        ready="hello",
        shutdown="infinity",
        backoff=Backoff(first=0.1, min=1.0, max=60.0, max_failures=5),
        limits=Limits(memory=Size(256 << 20), cpu_quota=CpuShare(0.5), max_pids=20),
        isolation="standard",
        network="host",
        code=str(home),
        workspace=str(home / "work"),
        runtime="fast",
    )
    own: Any = {"max_restarts": 5, "restart_window": 60.0, "backoff": Backoff(first=1.0, min=2.0, max=30.0)}
    lead = AgentSpec(
        "lead",
        mailbox="kept",
        command=(str(home / "tool"), "./a.py"),
        cwd=str(home / "work"),
        isolation="none",
        restart="transient",
        significant=True,
        **own,
    )
    last = AgentSpec(
        "last",
        mailbox="kept",
        command=("echo",),
        cwd="/workspace",
        python=str(home / "bin/python"),
        workspace="keep",
        isolation="strict",
        **own,
    )
    team = GroupSpec(
        "team",
        auto_shutdown="any_significant",
        restart="transient",
        shutdown=30.0,
        children=(lead, GroupSpec("inner", children=(last,), **own)),
    )
    assert config.root == GroupSpec("root", "rest_for_one", intensity=3, period=60.0, children=(database, team))


@pytest.mark.parametrize("text", ["", "# no agents yet\n"])
def test_a_file_without_tables_is_a_kernel_that_supervises_nothing(home: Path, text: str) -> None:
    config = loaded(text)

    assert (config.kernel, config.root) == (KernelSettings(), GroupSpec("root"))
    assert Config.without_file(home) == Config(config.kernel, config.llm, config.root, home)


def test_a_tilde_is_the_home_directory(home: Path) -> None:
    config = loaded('kernel.state_dir = "~/state"\n' + agent('script = "~/a.py"\ncwd = "~"\nsandboxed = false'))

    [child] = config.root.children
    assert config.kernel.state_dir == str(home / "state")
    assert isinstance(child, AgentSpec)
    assert (child.script, child.cwd) == (str(home / "a.py"), str(home))


def test_links_are_followed_once_when_the_file_is_read(home: Path) -> None:
    (home / "current").symlink_to("v1")
    executable(home / "v1" / "main.py")
    executable(home / "v1" / "tool")

    [script] = loaded(agent('script = "current/main.py"\ncode = "current"')).root.children
    [command] = loaded(agent('command = ["./current/tool", "./x"]')).root.children

    assert isinstance(script, AgentSpec)
    assert (script.script, script.code) == (str(home / "v1" / "main.py"), str(home / "v1"))
    assert isinstance(command, AgentSpec)
    assert command.command == (str(home / "v1" / "tool"), "./x")


def test_every_mistake_is_told_at_once_in_the_order_of_the_lines(home: Path) -> None:
    text = (
        '[kernel]\nmax_payload = "512K"\nspwan_rate = 3\n\n[supervisor]\nperiod = "0s"\n\n'
        + agent('script = "missing.py"\nrestart = "permnent"\nsignificant = true\nlimits = { memory = "lots" }\n')
        + '\n[unknown]\n\n[[supervisor.children]]\nname = "w"\nscript = "a.py"\nenv = { A = 1 }\n'
        + "\n[[supervisor.children]]\n"
    )

    missing = home / "missing.py"
    assert said(text) == [
        "agentos.toml:2: kernel.max_payload: expected a size from 1M to 64M, got '512K'",
        "agentos.toml:3: kernel.spwan_rate: unknown field, did you mean spawn_rate?",
        "agentos.toml:6: supervisor.period: expected a duration above 0s, got '0s'",
        f"agentos.toml:10: supervisor.children[0].script: there is no file {missing}",
        "agentos.toml:11: supervisor.children[0].restart: expected permanent, transient or temporary, got 'permnent'",
        "agentos.toml:12: supervisor.children[0].significant: significant means nothing while auto_shutdown is 'never'",
        "agentos.toml:13: supervisor.children[0].limits.memory: expected a size such as 256M, got 'lots'",
        "agentos.toml:15: unknown: unknown field",
        "agentos.toml:18: supervisor.children[1].name: the name 'w' is taken by supervisor.children[0]",
        "agentos.toml:20: supervisor.children[1].env.A: expected a string, got 1",
        "agentos.toml:22: supervisor.children[2].name: required field missing",
        "agentos.toml:22: supervisor.children[2].script: a script or a command is missing",
    ]


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        ("[limits]", ": each agent is a table [[agents]], with a name and all that is the agent's"),
        ("log_level = 'info'", ", did you mean kernel.log_level?"),
        ("strategy = 'one_for_all'", ", did you mean supervisor.strategy?"),
        ("[supervisors]", ", did you mean supervisor?"),
        ("[unknown]", ""),
    ],
)
def test_a_table_in_the_wrong_place_is_told_its_place(home: Path, table: str, hint: str) -> None:
    [line] = said(table)

    assert line.split(": ", 2)[2] == f"unknown field{hint}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[kernel]\nsocket 5", "agentos.toml:2: not TOML: expected '=' after a key in a key/value pair at column 8"),
        ("a = 1\n\nb = [1,", "agentos.toml:3: not TOML: invalid value at the end of the file"),
        (b"a = 1\nb = '\xff'", "agentos.toml:2: not UTF-8"),
        ("a = " + "[" * 5000, "agentos.toml: nested deeper than 110 tables and arrays"),
        ("[" + "a." * 5000 + "a]", "agentos.toml: nested deeper than 110 tables and arrays"),
        ("#" * (5 << 20), "agentos.toml: larger than 4 MiB"),
        ("kernel = 5", "agentos.toml:1: kernel: expected keys and values, got 5"),
    ],
)
def test_a_file_that_is_no_configuration(home: Path, text: str | bytes, line: str) -> None:
    assert said(text) == [line]


@each_row(("name", "least", "wrong"), [("max_children", 1, 0), ("max_connections", 1, 0), ("spawn_rate", 0.01, 0)])
def test_a_limit_is_above_zero(home: Path, name: str, least: float, wrong: float) -> None:
    assert getattr(loaded(f"[kernel]\n{name} = {least}").kernel, name) == least
    [mistake] = said(f"[kernel]\n{name} = {wrong}")
    assert mistake.startswith(f"agentos.toml:2: kernel.{name}: expected a")


def test_a_number_of_any_size_is_only_a_mistake(home: Path) -> None:
    [decimal] = said("[kernel]\nmax_children = " + "9" * 5000)
    [hexadecimal] = said("[kernel]\nmax_children = 0x" + "f" * 5000)

    assert decimal == "agentos.toml:2: a number of more than 4300 digits"
    assert hexadecimal == "agentos.toml:2: kernel.max_children: expected a whole number, got a very large number"


@each_row("size", ["1M", "64M", 64 << 20])
def test_a_body_may_have_any_size_that_the_kernel_copies_without_a_pause(home: Path, size: str | int) -> None:
    assert 1 << 20 <= loaded(f"[kernel]\nmax_payload = {size!r}").kernel.max_payload <= 64 << 20


@each_row("size", ["65M", "1G", "8000000T", (64 << 20) + 1, 2**63 - 1, "1023K", 0])
def test_a_size_of_bodies_that_would_stop_the_kernel_is_refused(home: Path, size: str | int) -> None:
    [told] = said(f"[kernel]\nmax_payload = {size!r}")

    assert told == f"agentos.toml:2: kernel.max_payload: expected a size from 1M to 64M, got {size!r}"


@each_row(
    ("line", "why"),
    [
        ('socket = ""', "kernel.socket: expected a path, got an empty one: leave it out for the default"),
        ('state_dir = ""', "kernel.state_dir: expected a path, got an empty one: leave it out for the default"),
        (f'socket = "/{"s" * 107}"', "kernel.socket: expected a path of at most 107 bytes, .* takes, got 108"),
        (f'socket = "/{"é" * 54}"', "kernel.socket: expected a path of at most 107 bytes, .* takes, got 109"),
    ],
)
def test_a_path_that_the_kernel_could_not_use_is_said_beforehand(home: Path, line: str, why: str) -> None:
    [told] = said(f"[kernel]\n{line}")

    assert re.fullmatch(f"agentos.toml:2: {why}", told)
    assert loaded(f'[kernel]\nsocket = "/{"s" * 106}"').kernel.socket


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *(("nowhere.toml", "no such file or directory"), (".", "is a directory"), ("a\0b", "embedded null byte")),
        ("pipe", "not a regular file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence(home: Path, name: str, why: str) -> None:
    os.mkfifo(home / "pipe")
    with pytest.raises(ConfigError) as caught:
        load(name)

    assert str(caught.value) == f"{name}: can't be read: {why}"


def test_a_script_must_be_a_file_that_can_be_read(home: Path) -> None:
    os.mkfifo(home / "pipe")

    [line] = said(agent('script = "pipe"'))

    assert line.endswith(f"script: {home / 'pipe'} is no file")


def test_supervisors_may_be_nested_deeply(home: Path) -> None:
    text, header = "", "supervisor"
    for depth in range(45):
        header += ".children"
        text += f'[[{header}]]\nname = "s{depth}"\ntype = "supervisor"\n'

    group = loaded(text).root
    for _ in range(45):
        [inner] = group.children
        assert isinstance(inner, GroupSpec)
        group = inner


@pytest.mark.usefixtures("home")
def test_the_log_on_disk_has_bounds_that_fit_together() -> None:
    found = loaded('[logs]\nmax_file_size = "1M"\nmax_age = "7d"\nmax_total = "64M"\n').logs
    assert astuple(found) == (1 << 20, 7 * 86400, 64 << 20)

    assert said('[logs]\nmax_file_size = "1M"\nmax_total = "2M"\nmax_age = "1s"\nmax_size = 1\n') == [
        "agentos.toml:4: logs.max_age: expected a duration of at least 1m, got '1s'",
        "agentos.toml:5: logs.max_size: unknown field, did you mean max_file_size?",
    ]
    assert said('[logs]\nmax_file_size = "1M"\nmax_total = "2M"\n') == [
        "agentos.toml:3: logs.max_total: expected at least 4 times max_file_size, which is 1,048,576 bytes, "
        "got 2,097,152 bytes",
    ]


@pytest.mark.usefixtures("home")
def test_the_bound_of_the_state_directory() -> None:
    assert loaded("").storage.max_total is None
    assert loaded('[storage]\nmax_total = "2G"\n').storage.max_total == 2 << 30

    assert said('[storage]\nmax_total = "63M"\nkeep = "1d"\n') == [
        "agentos.toml:2: storage.max_total: expected a size of at least 64M, got '63M'",
        "agentos.toml:3: storage.keep: unknown field",
    ]


@pytest.mark.usefixtures("home")
def test_masks_of_recordings_are_patterns() -> None:
    assert loaded("[recording]\nmasks = ['ticket-\\d+', 'x']\n").recording.masks == ("ticket-\\d+", "x")
    assert said("[recording]\nmasks = ['fine', '(']\n") == [
        "agentos.toml:2: recording.masks: a mask: '(': missing ): ("
    ]


@pytest.mark.usefixtures("home")
def test_a_call_waits_for_a_person_no_longer_than_its_entry_is_kept() -> None:
    why = "a call can't wait longer than its entry is kept: set timeout to at most"
    assert said('[approvals]\ntimeout = "20m"\n') == [
        f"agentos.toml:2: approvals.timeout: {why} 600s, or keep to at least 1200s"
    ]
    assert said('[approvals]\nkeep = "1m"\n') == [
        f"agentos.toml:2: approvals.keep: {why} 60s, or keep to at least 300s"
    ]
    assert loaded('[approvals]\ntimeout = "20m"\nkeep = "20m"\n').approvals.timeout == 1200
    [mistake] = said('[approvals]\ntimeout = "20m"\nkeep = "long"\n')
    assert mistake.startswith("agentos.toml:3: approvals.keep: expected")
