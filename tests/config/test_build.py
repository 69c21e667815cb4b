import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.agents.spec import AgentSpec
from agentos.config.build import Builder
from agentos.config.schema import AgentTable, SupervisorTable
from supervisors import Backoff
from tests.config.saying import agent, loaded, said


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("", "1: supervisor.children[0].script: a script or a command is missing"),
        ('script = "a.py"\ncommand = ["x"]', "3: supervisor.children[0].script: a script or a command, but not both"),
        ("command = []", "3: supervisor.children[0].command: expected at least one word, got an empty array"),
        ('command = "ls -l"', """3: supervisor.children[0].command: expected ["ls", "-l"], got 'ls -l'"""),
        (
            'script = "a.py"\nrestart = "always"',
            "4: supervisor.children[0].restart: expected permanent, transient or temporary, got 'always', "
            "did you mean permanent?",
        ),
        (
            'script = "a.py"\nlimits.cpu = "50%"',
            "4: supervisor.children[0].limits.cpu: unknown field, did you mean cpu_quota?",
        ),
        ("image = 5", "3: supervisor.children[0].image: expected a string, got 5"),
        ('type = "supervsior"', "3: supervisor.children[0].type: expected agent or supervisor, got 'supervsior'"),
        ('script = "a.py"\nready = "go"', "4: supervisor.children[0].ready: expected hello, got 'go'"),
        ('script = "a.py"\nchildren = []', "4: supervisor.children[0].children: unknown field"),
        ('script = "a.py"\nlimits = 5', "4: supervisor.children[0].limits: expected keys and values, got 5"),
        (
            'script = "a.py"\nlimits.cpu_weight = 0',
            "4: supervisor.children[0].limits.cpu_weight: expected 1 to 10000, got 0",
        ),
        (
            'script = "a.py"\nenv = { "A=B" = "" }',
            "4: supervisor.children[0].env['A=B']: expected the name of a variable, without '=', got 'A=B'",
        ),
        (
            'script = "a.py"\nenv = { AGENTOS_SOCKET = "/s" }',
            "4: supervisor.children[0].env.AGENTOS_SOCKET: "
            "expected a name without AGENTOS_ in front, which is the kernel's, got 'AGENTOS_SOCKET'",
        ),
        (
            'script = "a.py"\nbackoff = { min = "2s", max = "1s" }',
            "4: supervisor.children[0].backoff: 0 <= min <= max must hold, not 2.0 and 1.0",
        ),
        (
            'script = "a.py"\nwatchdog = "500ms"',
            "4: supervisor.children[0].watchdog: expected a duration from 1s to 1d, got '500ms'",
        ),
        (
            'script = "a.py"\nwatchdog = "soon"',
            "4: supervisor.children[0].watchdog: expected a duration such as 5s, got 'soon'",
        ),
        (
            'script = "a.py"\nhealth = { interval = "5s" }',
            "4: supervisor.children[0].health.command: required field missing",
        ),
        (
            'script = "a.py"\nhealth = { command = ["true"], timeout = "1h" }',
            "4: supervisor.children[0].health.timeout: expected a duration above 0s, at most 5m, got '1h'",
        ),
        (
            'script = "a.py"\nhealth = { command = ["true"], every = "5s" }',
            "4: supervisor.children[0].health.every: unknown field",
        ),
        (
            'script = "a.py"\nhealth = { command = "curl localhost" }',
            """4: supervisor.children[0].health.command: expected ["curl", "localhost"], got 'curl localhost'""",
        ),
        (
            'script = "a.py"\nhealth = { command = ["true"], failures = 0 }',
            "4: supervisor.children[0].health.failures: expected a whole number from 1 to 100, got 0",
        ),
        (
            'script = "a.py"\nbackoff = { min = "soon" }',
            "4: supervisor.children[0].backoff.min: expected a duration such as 5s, got 'soon'",
        ),
        (
            'script = "a.py"\nsignificant = true',
            "4: supervisor.children[0].significant: a permanent child never ends, so it is not significant",
        ),
        (
            'type = "supervisor"\nintensity = -1',
            "4: supervisor.children[0].intensity: expected a whole number from 0 to 1000, got -1",
        ),
        ('type = "supervisor"\nchildren = 1', "4: supervisor.children[0].children: expected an array, got 1"),
        (
            'type = "supervisor"\nchildren = [1]',
            "4: supervisor.children[0].children[0]: expected keys and values, got 1",
        ),
        ("type = 2024-01-01", "3: supervisor.children[0].type: expected agent or supervisor, got a date"),
    ],
)
def test_a_child_that_cannot_be(home: Path, lines: str, sentence: str) -> None:
    assert said(agent(lines)) == [f"agentos.toml:{sentence}"]


RESERVED = (
    "expected a name other than root, spawned, kernel, operator, guest in any case, and without mcp. in front: "
    "the kernel keeps these for itself"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("root", f"{RESERVED}, got 'root'"),
        ("spawned", f"{RESERVED}, got 'spawned'"),
        ("Operator", f"{RESERVED}, got 'Operator'"),
        ("guest", f"{RESERVED}, got 'guest'"),
        ("\uff4fperator", "expected a name of 1 to 64 letters"),
        ("a/b", "expected a name of 1 to 64 letters, digits, '.', '_' or '-', begun by a letter or digit, and not of"),
        ("123", "expected a name of 1 to 64 letters"),
        ("", "expected a name of 1 to 64 letters"),
        ("é", "expected a name of 1 to 64 letters"),
    ],
)
def test_a_name_that_cannot_be(home: Path, name: str, expected: str) -> None:
    [line] = said(f'[[supervisor.children]]\nname = "{name}"\nscript = "a.py"')

    assert line.startswith(f"agentos.toml:2: supervisor.children[0].name: {expected}")


def test_supervisors_and_agents_share_one_set_of_names(home: Path) -> None:
    inner = '[[supervisor.children.children]]\nname = "w"\nscript = "a.py"'

    assert said(agent('type = "supervisor"\n' + inner)) == [
        "agentos.toml:5: supervisor.children[0].children[0].name: the name 'w' is taken by supervisor.children[0]"
    ]


def test_a_backoff_that_makes_intensity_unreachable_is_refused_as_supervisors_refuse_it(home: Path) -> None:
    [line] = said(agent('script = "a.py"\nbackoff = { min = "10s", jitter = 0 }'))

    assert line.startswith("agentos.toml:4: supervisor.children[0].backoff: with its backoff 6 restarts take")


def test_a_significant_child_needs_a_supervisor_that_minds(home: Path) -> None:
    child = agent('script = "a.py"\nrestart = "transient"\nsignificant = true')

    assert said(child) == [
        "agentos.toml:5: supervisor.children[0].significant: significant means nothing while auto_shutdown is 'never'"
    ]
    assert loaded('[supervisor]\nauto_shutdown = "any_significant"\n' + child).root.children[0].significant


def test_a_wrong_field_is_not_blamed_on_others_too(home: Path) -> None:
    child = agent('script = "a.py"\nrestart = "trnsient"\nsignificant = true\nbackoff = { min = "1m", max = "2m" }')

    assert said('[supervisor]\nauto_shutdown = "all"\nintensity = "5"\n' + child) == [
        "agentos.toml:2: supervisor.auto_shutdown: expected never, any_significant or all_significant, got 'all'",
        "agentos.toml:3: supervisor.intensity: expected a whole number, got '5'",
        "agentos.toml:7: supervisor.children[0].restart: expected permanent, transient or temporary, got 'trnsient'",
    ]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.sampled_from(["5s", "1M", "supervisor"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [field.name for table in (AgentTable, SupervisorTable) for field in table.__attrs_attrs__]
TABLES: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    lambda inner: st.builds(
        lambda table, children: {**table, "type": "supervisor", "children": children}, inner, st.lists(inner)
    ),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(TABLES | st.fixed_dictionaries({"supervisor": TABLES, "kernel": VALUES}) | VALUES)
def test_garbage_is_only_ever_a_list_of_mistakes(home: Path, data: Any) -> None:
    builder = Builder(home)

    builder.build(data)

    assert all(isinstance(message, str) and isinstance(keys, tuple) for keys, message in builder.mistakes)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            'script = "a.py"\npython = "nopython"',
            "4: {}.python: expected an interpreter, and there is no 'nopython'",
        ),
        (
            'script = "a.py"\npython = "inner/../env/bin/python"',
            "4: {}.python: expected an interpreter, and there is no '{home}/env/bin/python' that can be run",
        ),
        (
            'script = "a.py"\npython = "./wrapper"',
            "4: {}.python: {home}/wrapper is a script that starts an interpreter: name the interpreter itself",
        ),
        (
            'command = ["./nothing"]',
            "3: {}.command[0]: expected a program that can be run, got '{home}/nothing'",
        ),
        ('command = ["./a.py"]', "3: {}.command[0]: expected a program that can be run, got '{home}/a.py': not execut"),
        ('command = ["/usr/bin"]', "3: {}.command[0]: expected a program that can be run, got '/usr/bin': not a file"),
        (
            'command = ["/agent/x"]',
            "3: {}.command[0]: expected a program that can be run, got '/agent/x': no such file",
        ),
        (
            'command = ["/agent/x"]\nsandboxed = false',
            "3: {}.command[0]: expected a program that can be run, got '/agent/x': no such file",
        ),
        ('script = "a.py"\ncode = "b"', "4: {}.code: expected a directory, got '{home}/b'"),
        ('script = "a.py"\ncode = "a.py"', "4: {}.code: expected a directory, got '{home}/a.py'"),
        (
            'script = "a.py"\ncode = "inner"',
            "3: {}.script: expected a file in code ({home}/inner), since /agent has nothing else, got '{home}/a.py'",
        ),
        ('script = "a.py"\nworkspace = "b"', "4: {}.workspace: expected tmp, keep or a directory, got '{home}/b'"),
        (
            'script = "a.py"\nworkspace = "/etc"',
            "4: {}.workspace: expected a directory that an agent may have, got '/etc': a directory of the system's",
        ),
        ('script = "a.py"\ncwd = "/etc"', "4: {}.cwd: expected a directory in /workspace, /agent, /tmp, which are all"),
        ('script = "a.py"\ncwd = "../x"', "4: {}.cwd: expected a directory in /workspace, /agent, /tmp, which are all"),
        ('command = ["x"]\nruntime = "fast"', "4: {}.runtime: fast runs a script, and this is a command"),
        (
            'script = "a.py"\nsandboxed = false\nisolation = "strict"',
            "5: {}.isolation: strict isolation needs a sandbox, and sandboxed is false: leave one of them out",
        ),
        (
            'script = "a.py"\nisolation = "none"\ncode = "."',
            "5: {}.code: only a jail has this, and isolation is none: leave it out",
        ),
        ('script = "a.py"\nlimits.disc = "1M"', "4: {}.limits.disc: unknown field, did you mean disk?"),
        ('script = "a.py"\nlimits.disk = 0', "4: {}.limits.disk: expected at least 1, got 0"),
        (
            'script = "a.py"\nsandboxed = false\nlimits.memory = 0',
            "5: {}.limits.memory: expected at least 2M, a number alone being bytes, got 0",
        ),
        (
            'script = "a.py"\nlimits.memory = 5',
            "4: {}.limits.memory: expected at least 2M, a number alone being bytes, got 5",
        ),
        ('script = "a.py"\nlimits.max_pids = 9999999', "4: {}.limits.max_pids: expected 1 to 4194304, got 9999999"),
    ],
)
def test_what_a_jail_cannot_have(home: Path, lines: str, sentence: str) -> None:
    (home / "inner").mkdir()
    (home / "wrapper").write_text("#!/bin/sh\n")
    (home / "wrapper").chmod(0o755)

    [line] = said(agent(lines))

    assert line.startswith("agentos.toml:" + sentence.replace("{}", "supervisor.children[0]").format(home=home))


def test_all_that_a_jail_cannot_have_is_told_at_once(home: Path) -> None:
    mistakes = said(
        agent('command = ["./no"]\ncode = "no"\nworkspace = "no"\npython = "no"\ncwd = "/"\nlimits.disk = 0')
    )

    assert [line.split(": ")[1].removeprefix("supervisor.children[0].") for line in mistakes] == [
        *("command[0]", "code", "workspace", "python", "cwd", "limits.disk"),
    ]


@pytest.mark.parametrize("command", ["no-such-program", "/workspace/made-later", "/usr/bin/env"])
def test_a_program_that_cannot_be_judged_yet_is_let_pass(home: Path, command: str) -> None:
    assert loaded(agent(f'command = ["{command}"]')).root.children


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_code_that_may_not_be_read_is_no_code(home: Path) -> None:
    (home / "closed").mkdir(0o000)

    assert said(agent('command = ["sh"]\ncode = "closed"')) == [
        f"agentos.toml:4: supervisor.children[0].code: expected a directory that can be read, got '{home}/closed'"
    ]


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('waive = ["memroy"]', "2: kernel.waive[0]: expected "),
        ("uids = { first = 0 }", "2: kernel.uids.first: expected a uid from 1 up, 0 being root's, got 0"),
        ("uids = { count = 0 }", "2: kernel.uids.count: expected a whole number from 1 up, got 0"),
    ],
)
def test_a_kernel_that_cannot_be(home: Path, lines: str, sentence: str) -> None:
    [line] = said(f"[kernel]\n{lines}")

    assert line.startswith("agentos.toml:" + sentence)


def test_members_of_a_group_have_no_restart_limits_of_their_own(home: Path) -> None:
    keys = 'max_restarts = 4\nrestart_window = "1m"\non_give_up = "escalate"'
    member = agent(f'script = "a.py"\n{keys}')
    team = agent('type = "supervisor"\nstrategy = "rest_for_one"\n') + member.replace("children", "children.children")
    together = "supervisor are restarted and given up together: "

    one = loaded(member).root.children[0]
    assert (one.max_restarts, one.restart_window, one.on_give_up) == (4, 60.0, "escalate")
    assert said('[supervisor]\nstrategy = "one_for_all"\n' + member) == [
        f"agentos.toml:{line}: supervisor.children[0].{key}: members of a one_for_all {together}{instead}"
        for line, key, instead in (
            (6, "max_restarts", "use intensity of the supervisor 'root' instead"),
            (7, "restart_window", "use period of the supervisor 'root' instead"),
            (8, "on_give_up", "when the root gives up, the kernel ends with exit status 1"),
        )
    ]
    assert said(team.replace('"w"', '"team"', 1)) == [
        f"agentos.toml:{line}: supervisor.children[0].children[0].{key}: members of a rest_for_one {together}"
        f"use {instead} of the supervisor 'team' instead"
        for line, key, instead in (
            (8, "max_restarts", "intensity"),
            (9, "restart_window", "period"),
            (10, "on_give_up", "on_give_up"),
        )
    ]


def test_a_declared_agent_has_restart_limits_of_its_own(home: Path) -> None:
    group = agent('type = "supervisor"\nintensity = 7\n') + agent('script = "a.py"').replace('"w"', '"a"')
    for child in loaded(group).root.children:
        assert (child.max_restarts, child.restart_window, child.on_give_up) == (5, 60.0, "fail")
        assert child.backoff == Backoff(first=1.0, min=2.0, max=30.0)


def test_limits_that_the_default_backoff_never_reaches_are_refused(home: Path) -> None:
    [line] = said(agent('script = "a.py"\nmax_restarts = 20'))

    assert line.startswith(
        "agentos.toml:4: supervisor.children[0].max_restarts: with the default backoff of 1 s to 30 s 21 restarts take "
    )
    assert "make restart_window at least" in line
    assert line.endswith("or give it a backoff of its own")


def test_the_root_has_no_supervisor_that_could_give_it_up(home: Path) -> None:
    assert said('[supervisor]\non_give_up = "escalate"\nmax_restarts = 3\n') == [
        "agentos.toml:2: supervisor.on_give_up: the root has no supervisor above it: when it gives up, the kernel ends "
        "with exit status 1",
        "agentos.toml:3: supervisor.max_restarts: a key of a child: each of [[agents]] has its own",
    ]


def test_unlimited_restarts_need_a_backoff_that_grows(home: Path) -> None:
    text = 'script = "a.py"\nmax_restarts = "unlimited"'

    assert loaded(agent(text)).root.children[0].max_restarts == math.inf
    assert loaded(agent('type = "supervisor"\nmax_restarts = "unlimited"')).root.children[0].max_restarts == math.inf
    assert said(agent(f"{text}\nbackoff = {{ max = 0.5 }}")) == [
        "agentos.toml:5: supervisor.children[0].backoff: restarts without a limit need a backoff that grows to a max "
        "of 1 s or more"
    ]
    assert said(agent('script = "a.py"\nmax_restarts = "often"')) == [
        "agentos.toml:4: supervisor.children[0].max_restarts: expected a whole number or unlimited, got 'often'"
    ]


def test_a_framework_brings_its_variables_and_memory_and_the_file_wins(home: Path) -> None:
    text = 'command = ["true"]\nframework = "agents"\nenv = { OTEL_SDK_DISABLED = "false" }'
    other = 'command = ["true"]\nframework = "langchain"\nlimits = { memory = "300M", max_pids = 9 }'

    [a] = loaded(agent(text)).root.children
    [b] = loaded(agent(other)).root.children

    assert isinstance(a, AgentSpec)
    assert isinstance(b, AgentSpec)
    assert {"OPENAI_AGENTS_DISABLE_TRACING": "1", "OTEL_SDK_DISABLED": "false"}.items() <= dict(a.env).items()
    assert (a.limits.memory, b.limits.memory, b.limits.max_pids) == (1 << 30, 300 << 20, 9)
    assert dict(b.env)["LANGSMITH_TRACING"] == "false"
    [none] = said(agent('command = ["true"]\nframework = "none"'))
    assert "framework: expected one of agents, aider, " in none
    lacking = said(agent('command = ["claude"]\nframework = "claude-code"'))
    assert ["needs [llm] openai_endpoint = true" in lacking[0], 'needs [llm] model = "…"' in lacking[1]] == [True] * 2
    model = '[llm]\nprovider = "offline"\nmodel = "m"\nopenai_endpoint = true\n'
    [c] = loaded(
        model + agent('command = ["sh", "x"]\nframework = "codex"\nlimits = { memory = "300M" }')
    ).root.children
    assert isinstance(c, AgentSpec)
    assert c.command is not None
    assert (c.command[0], c.command[-1], c.limits.memory) == ("sh", "x", 300 << 20)
    assert 'model="m"' in c.command


TREE = """[supervisor]
strategy = "rest_for_one"
[[supervisor.children]]
name = "a"
command = ["true"]
[[supervisor.children]]
name = "team"
type = "supervisor"
[[supervisor.children.children]]
name = "b"
command = ["true"]
"""


def test_agents_are_the_children_of_the_root(home: Path) -> None:
    assert loaded(TREE.replace("supervisor.children", "agents")).root == loaded(TREE).root


def test_a_mistake_in_one_of_agents_is_told_with_its_path(home: Path) -> None:
    assert said(TREE.replace("supervisor.children", "agents").replace("command", "comand"))[1:3] == [
        "agentos.toml:5: agents[0].comand: unknown field, did you mean command?",
        "agentos.toml:9: agents[1].children[0].script: a script or a command is missing",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f'{TREE}[[agents]]\nname = "c"\ncommand = ["true"]',
            "12: agents: [[supervisor.children]] stand in this file, too: write all of them as [[agents]], or none",
        ),
        ('[agents]\nname = "c"', "1: agents: expected tables [[agents]], one for each agent"),
        ('agents = ["c"]', "1: agents[0]: expected keys and values, got 'c'"),
    ],
)
def test_agents_that_cannot_be(home: Path, text: str, sentence: str) -> None:
    assert said(text) == [f"agentos.toml:{sentence}"]
