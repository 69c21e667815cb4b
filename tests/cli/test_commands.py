"""Each command as a person and as a program use it."""

import json
import re
import subprocess

import pytest
from click import unstyle
from click.testing import CliRunner

from agentos.userland.cli.agents.agents import agent_lines, missing_layers
from agentos.userland.cli.agents.inspect import describe_isolation, describe_limits, describe_network, describe_usage
from agentos.userland.cli.columns import fit_columns, format_table
from agentos.userland.cli.kernel.kernel import find_last_error, list_problems
from agentos.userland.cli.main import COMMANDS, cli
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, running

SLEEP = ("--", "sleep", "1000")


def test_ps_shows_a_table_and_hides_agents_that_have_ended(agentos: Agentos) -> None:
    agentos("spawn", "alive", *SLEEP)
    agentos("spawn", "ended", *SLEEP)
    agentos("kill", "ended")

    shown = agentos("ps")

    assert shown.returncode == 0
    header, *rows = shown.stdout.splitlines()
    assert header.split() == [
        "ID",
        "NAME",
        "PID",
        "STATE",
        "RESTARTS",
        "UPTIME",
        "MEM",
        "CPU",
        "ISOLATION",
        "SUPERVISOR",
    ]
    assert [row.split()[1:2] for row in rows if "alive" in row] == [["alive"]]
    assert "ended" not in rows[0]
    assert re.fullmatch(r"\(\d+ ended, see --all\)", rows[-1])
    assert "ended" in agentos("ps", "--all").stdout
    assert {agent["name"] for agent in json.loads(agentos("ps", "--json").stdout)} >= {"alive", "ended"}


@pytest.mark.parametrize(
    ("command", "code", "status"),
    [
        (("inspect", "nobody"), "not_found", 1),
        (("ps", "--socket", "/nowhere/s"), "unavailable", 1),
        (("spawn", "x", "--limit", "memory", "--", "true"), "bad_request", 1),
        (("spawn", "x", "--limit", "memory=lots", "--", "true"), "bad_request", 1),
        (("spawn", "x", "no-such-script.py"), "not_found", 1),
        (("exec", "--host", "--", "no-such-program"), "not_found", 127),
        (("logs", "-f", "nobody"), "not_found", 1),
        (("think", "x", "--temperature", "3"), "bad_request", 1),
        (("permissions", "show", "nothing"), "bad_request", 1),
        (("start", "nobody"), "not_found", 1),
        (("stop", "nobody", "--keep"), "not_found", 1),
        (("restart", "nobody"), "not_found", 1),
        (("cp", "nobody:/x", "here"), "not_found", 1),
        (("budget", "reset", "nobody"), "not_found", 1),
        (("state", "get", "nothing"), "not_found", 1),
        (("state", "rm", "nothing"), "not_found", 1),
        (("status", "--socket", "/nowhere/s"), "unavailable", 1),
        (("shutdown", "--socket", "/nowhere/s"), "unavailable", 1),
        (("reload", "--socket", "/nowhere/s"), "unavailable", 1),
    ],
)
def test_an_error_is_json_where_json_was_asked_for(
    agentos: Agentos, command: tuple[str, ...], code: str, status: int
) -> None:
    words = 2 if command[0] in ("permissions", "budget", "state") else 1
    said, asked = agentos(*command), agentos(*command[:words], "--json", *command[words:])

    reply = json.loads(asked.stdout)
    assert (reply["success"], reply["code"], asked.returncode, asked.stderr) == (False, code, status, "")
    assert said.stderr == f"agentos: {reply['error']}\n"
    assert (said.stdout, said.returncode) == ("", status)


def test_a_near_name_is_offered(agentos: Agentos) -> None:
    agentos("spawn", "pinger", *SLEEP)

    for command in (("logs", "pingr"), ("inspect", "pingr"), ("stop", "pingr"), ("exec", "pingr", "--", "true")):
        assert agentos(*command).stderr.endswith("is called 'pingr', did you mean pinger?\n"), command
    asked = json.loads(agentos("inspect", "--json", "pingr").stdout)
    assert (asked["code"], asked["error"].endswith("did you mean pinger?")) == ("not_found", True)


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--json"),
        ("ps", "--json", "--nonsense"),
        ("nonsense", "--json"),
        ("usage", "--json", "--since", "x"),
        ("spawn", "--json", "--network", "--filtered", "two", "--", "true"),
    ],
)
def test_a_usage_error_is_json_where_json_was_asked_for(agentos: Agentos, words: tuple[str, ...]) -> None:
    done = agentos(*words)

    reply = json.loads(done.stdout)
    assert (reply["success"], reply["code"], done.returncode, done.stderr) == (False, "bad_request", 2, "")


def test_a_filtered_network_is_shown_with_its_domains() -> None:
    rules = {"allow": {"domains": ["pypi.org", "*.pythonhosted.org"]}, "ask": {"domains": ["github.com"]}}

    assert describe_network("filtered", rules) == "filtered (pypi.org, *.pythonhosted.org, asks for github.com)"
    assert describe_network("filtered", {"level": "standard"}) == "filtered (level standard)"
    assert describe_network("filtered", {"level": "sandboxed"}) == "filtered (no domains)"
    assert describe_network("filtered", {}) == "filtered (no domains)"
    assert (describe_network("none", rules), describe_network("host", rules)) == ("none", "host")


def test_a_limit_that_is_not_enforced_says_so() -> None:
    layers = {"memory": {"active": True}, "cpu": {"active": False}}
    usage = {"memory": 1 << 20, "peak": None, "pids": 2, "cpu_seconds": None, "source": "/proc", "reason": "no cgroup"}

    assert describe_limits({"memory": 256 << 20, "cpu_quota": 50_000, "max_pids": 9}, layers) == (
        "memory 256M, cpu_quota 50% (not enforced), max_pids 9"
    )
    assert describe_usage(usage) == "memory 1M, pids 2 (/proc); no cgroup"


def test_help_needs_no_kernel_and_fits_80_columns_and_no_summary_is_cut() -> None:
    environment = {"AGENTOS_SOCKET": "/nowhere", "COLUMNS": "80"}
    commands = [
        (),
        *((name,) for name in COMMANDS),
        ("permissions", "explain"),
        ("permissions", "show"),
        ("audit", "verify"),
        ("audit", "summary"),
        ("budget", "reset"),
        ("state", "set"),
    ]
    helps = {command: CliRunner().invoke(cli, [*command, "--help"], env=environment) for command in commands}

    assert [name for name in COMMANDS if name not in helps[()].output] == []
    for command, shown in helps.items():
        lines = shown.output.splitlines()
        assert (shown.exit_code, max(map(len, lines)) <= 80) == (0, True), command
        assert not [line for line in lines if line.startswith("  ") and line.endswith("...")], command


@pytest.mark.parametrize("columns", ["70", "80", "200"])
def test_ps_is_never_wider_than_the_terminal(agentos: Agentos, columns: str) -> None:
    name = "a-name-of-sixty-characters-that-differs-from-others-at-its-end"
    for number in (1, 2):
        agentos("spawn", f"{name}-{number}", *SLEEP)
    agentos("spawn", "failed-with-a-long-reason", "--", f"program-{'x' * 100}")

    shown, wide = agentos("ps", "-a", COLUMNS=columns).stdout, agentos("ps", "-a", "--wide", COLUMNS=columns).stdout

    assert max(map(len, shown.splitlines())) <= int(columns)
    assert all(re.search(rf"^\d+ +\S*…?\S*-{number}  ", shown, re.MULTILINE) for number in (1, 2))
    assert "x: not found in the jail's PATH" in shown
    assert f"{name}-1  " in wide


def test_ps_marks_what_it_cuts_beside_a_long_state() -> None:
    stopped = {
        "id": 1, "name": "collector", "pid": None, "state": "stopped", "restarts": 0, "running": False,
        "stopped_by": "operator", "kept": False, "isolation": "standard", "llm": {"in_flight": 0, "waiting": 0},
        "supervisor": "root/counting",
    }  # fmt: skip
    started = stopped | {"pid": 12345, "state": "running", "stopped_by": None, "running": True, "uptime_ms": 86_399_000}

    header, *rows = agent_lines([stopped, started], False, 80)

    assert max(len(unstyle(line)) for line in (header, *rows)) <= 80
    assert unstyle(header).endswith(" SUPERVISOR")
    assert all(re.search(r" r\S*…\S*g$", unstyle(row)) for row in rows)


def test_a_missing_layer_is_said_in_the_same_words_by_ps_and_inspect() -> None:
    agents = [{"name": name, "missing": ["cpu"]} for name in ("a", "b")]
    cpu = {"asked": 100000, "active": False, "reason": "no cgroup delegated"}

    assert missing_layers(agents) == ["cpu not limited"]
    assert missing_layers([*agents, {"name": "c", "missing": []}]) == ["cpu not limited: a, b"]
    assert "cpu not limited" in describe_isolation({"level": "standard", "layers": {"cpu": cpu}})


def test_tree_draws_and_gives_json(agentos: Agentos) -> None:
    agentos("spawn", "leaf", *SLEEP)

    drawn = agentos("tree").stdout

    assert drawn.splitlines()[0] == "root  one_for_one, at most 1 escalation in 5 s"
    assert re.search(r"^   └─ leaf  running pid \d+, temporary$", drawn, re.MULTILINE)
    assert json.loads(agentos("tree", "--json").stdout)["name"] == "root"


def test_spawn_pause_resume_kill_for_people_and_for_programs(agentos: Agentos) -> None:
    spawned = agentos("spawn", "worker", "--restart", "permanent", *SLEEP)
    assert re.fullmatch(r"worker is running \(id \d+, pid \d+\)\n", spawned.stdout)

    assert agentos("pause", "worker").stdout == "worker is paused\n"
    assert json.loads(agentos("resume", "worker", "--json").stdout)["resumed"]
    assert json.loads(agentos("spawn", "--json", "other", *SLEEP).stdout)["status"] == "running"
    number = json.loads(agentos("ps", "--json").stdout)[-1]["id"]
    assert json.loads(agentos("pause", str(number), "--json").stdout)["paused"]
    assert agentos("kill", "worker", "--grace", "0").stdout == "worker has ended\n"
    assert json.loads(agentos("kill", str(number), "--json").stdout) == {"killed": True, "agent_id": number}


@pytest.mark.usefixtures("kernels")
def test_start_stop_restart_and_kill_of_a_declared_agent(agentos: Agentos) -> None:
    with running('[[supervisor.children]]\nname = "declared"\ncommand = ["sleep", "1000"]\n') as own:

        def command(*words: str) -> str:
            return agentos(*words, AGENTOS_SOCKET=own.socket).stdout

        assert command("kill", "declared") == "declared is stopped\n"
        assert command("start", "declared") == "declared is running\n"
        assert command("stop", "declared") == "declared is stopped\n"
        assert re.search(r"declared +- +stopped by operator +0 ", command("ps"))
        assert re.search(r"declared  stopped by operator, permanent", command("tree"))
        assert command("start", "declared") == "declared is running\n"
        assert json.loads(command("restart", "declared", "--json"))["agents"] == [
            {"name": "declared", "state": "running"}
        ]
        refused = agentos("stop", "declared", "nobody", AGENTOS_SOCKET=own.socket)
        assert (refused.returncode, refused.stderr) == (1, "agentos: no agent or group is called 'nobody'\n")


@pytest.mark.usefixtures("kernels")
def test_reload_prints_a_table_of_what_differs(agentos: Agentos) -> None:
    first = '[[supervisor.children]]\nname = "a"\ncommand = ["sleep", "1000"]\n'
    with running(first) as own:

        def reload(toml: str, *words: str) -> subprocess.CompletedProcess[str]:
            (own.place / "agentos.toml").write_text(toml)
            return agentos("reload", *words, AGENTOS_SOCKET=own.socket)

        other = f"[kernel]\nmax_children = 3\n{first}".replace('"a"', '"b"') + first + 'shutdown = "1s"\n'
        told = """CHANGE   AGENT OR GROUP  FIELDS
added    b
updated  a               shutdown
not changed until the kernel is started anew: kernel.max_children
"""
        assert reload(other, "--dry-run").stdout == f"{told}nothing was changed: this was a dry run\n"
        assert reload(other).stdout == told
        assert json.loads(reload(first, "--json").stdout)["changes"] == [
            {"agent": "a", "change": "updated", "fields": ["shutdown"]},
            {"agent": "b", "change": "removed", "fields": []},
        ]
        assert reload(first).stdout == "nothing differs: nothing was changed\n"
        wrong = reload(first + "colour = 3\nshape = 4\n")
        assert wrong.returncode == 1
        assert [line.partition("agentos.toml:")[2] for line in wrong.stderr.splitlines()] == [
            "4: supervisor.children[0].colour: unknown field",
            "5: supervisor.children[0].shape: unknown field",
        ]


def test_spawn_takes_scripts_with_their_arguments_and_its_options(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "show.py").write_text("import os, sys\nprint(sys.argv[1:], os.environ['X'], os.getcwd())\n")

    done = agentos(
        "spawn", "show", "--wait", "--env", "X=a=b", "--cwd", "/tmp", "show.py", "--flag", "-x", "--wait", "--", "y"
    )

    assert done.stdout == "['--flag', '-x', '--wait', '--', 'y'] a=b /tmp\n"
    assert done.returncode == 0


def test_send_and_logs(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "reader.py").write_text(
        "from agentos import AgentOSClient\n"
        "with AgentOSClient() as me:\n"
        "    me.hello()\n"
        "    while True:\n"
        "        for message in me.recv_messages(timeout=300)['messages']:\n"
        "            print(repr(message['message']))\n"
        "            if message['message'] == 'end': raise SystemExit\n"
    )
    agentos("spawn", "reader", "--ready", "hello", "reader.py")

    assert re.fullmatch(r"delivered to reader \(id \d+\)\n", agentos("send", "reader", "plain text").stdout)
    assert json.loads(agentos("send", "--json", "reader", '{"a": [1]}').stdout)["delivered_to"]
    agentos("send", "reader", "end")

    followed = agentos("logs", "-f", "reader").stdout
    assert re.sub(r"(?m)^\d\d:\d\d:\d\d ", "", followed).splitlines() == [
        "stdout | 'plain text'",
        "stdout | {'a': [1]}",
        "stdout | 'end'",
        "kernel | ended: exit status 0",
    ]
    last = [json.loads(line) for line in agentos("logs", "--json", "-n", "1", "reader").stdout.splitlines()]
    assert [line["text"] for line in last] == ["ended: exit status 0"]


def test_call_makes_any_call(agentos: Agentos) -> None:
    assert json.loads(agentos("call", "LIST").stdout) == json.loads(agentos("call", "0x12").stdout)
    assert agentos("call", "NOOP", "any bytes").stdout == "any bytes\n"
    assert agentos("call", "exit").stdout == "goodbye\n"
    refused = agentos("call", "KILL", '{"name": 5}')
    assert (refused.returncode, json.loads(refused.stdout)["killed"]) == (1, False)
    unknown = agentos("call", "WORLD_CREATE", "{}")
    assert (unknown.returncode, json.loads(unknown.stdout)["code"]) == (1, "unknown_call")


NO_SCRIPT = (
    "agentos: script: there is no file /no/such.py; "
    "for a command write -- before it: agentos spawn x -- /no/such.py ..."
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("kill", "nobody"), "agentos: no agent is called 'nobody'"),
        (("pause", "4000000000"), "agentos: no agent has the id 4000000000"),
        (("resume", "nobody"), "agentos: no agent is called 'nobody'"),
        (("logs", "nobody"), "agentos: no agent is called 'nobody'"),
        (("logs", "-f", "nobody"), "agentos: no agent is called 'nobody'"),
        (("send", "nobody", "hi"), "agentos: no caller is called 'nobody'"),
        (("spawn", "x", "/no/such.py"), NO_SCRIPT),
        (("spawn", "x", "--wait", "/no/such.py"), NO_SCRIPT),
        (("spawn", "--env", "A", "x", "y.py"), "agentos: --env A: expected NAME=VALUE"),
        (("call", "NONSENSE"), "agentos: there is no system call 'NONSENSE': see docs/reference/calls"),
        (("call", "0x100"), "agentos: there is no system call '0x100': see docs/reference/calls"),
    ],
)
def test_an_error_is_one_line_and_status_1(agentos: Agentos, arguments: tuple[str, ...], text: str) -> None:
    failed = agentos(*arguments)

    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", text + "\n")


@pytest.mark.parametrize(
    "arguments",
    [("ps",), ("tree",), ("kill", "x"), ("logs", "x"), ("logs", "-f", "x"), ("send", "x", "y"), ("call", "LIST")],
)
def test_without_a_kernel_the_way_out_is_said(agentos: Agentos, kernel: Kernel, arguments: tuple[str, ...]) -> None:
    nowhere = str(kernel.place / "nowhere")

    failed = agentos(*arguments, AGENTOS_SOCKET=nowhere)

    assert failed.returncode == 1
    last_run = "; `agentos logs --last-run` shows the log of its last run" if arguments[0] == "logs" else ""
    assert failed.stderr == f"agentos: no kernel at {nowhere}: start one with `agentos run`{last_run}\n"


def test_a_slip_of_the_pen_is_understood(agentos: Agentos) -> None:
    failed = agentos("spwan")

    assert failed.returncode == 2
    assert ", did you mean spawn?" in failed.stderr


def test_the_socket_is_found_in_this_order(agentos: Agentos, kernel: Kernel) -> None:
    """--socket, AGENTOS_SOCKET, ./agentos.toml, the kernel that was started here."""
    file = kernel.place / "agentos.toml"
    nowhere = str(kernel.place / "nowhere")
    file.write_text('[kernel]\nsocket = "by-file"\n')
    try:
        assert agentos("ps", "--socket", kernel.socket, AGENTOS_SOCKET=nowhere).returncode == 0
        assert nowhere in agentos("ps", AGENTOS_SOCKET=nowhere).stderr
        assert agentos("ps", AGENTOS_SOCKET="").stderr.split()[4] == f"{kernel.place}/by-file,"
    finally:
        file.unlink()
    assert agentos("ps", AGENTOS_SOCKET="").returncode == 0


def test_problems_with_isolation_are_one_line_for_all_agents() -> None:
    attention = [
        {"kind": "isolation", "name": "a", "text": "a: landlock doesn't stand"},
        {"kind": "failed", "name": "b", "text": "b failed: exit status 3"},
        {"kind": "isolation", "name": "c", "text": "c: landlock doesn't stand"},
    ]

    assert list(list_problems(attention)) == ["b failed: exit status 3", "landlock doesn't stand: a, c"]


def test_a_failed_agent_is_quoted_with_the_last_line_of_stderr_of_its_last_life() -> None:
    attention = [{"kind": "failed", "name": "b", "text": "b failed: exit status 3"}]
    end = {"stream": "kernel", "text": "ended: exit status 3"}
    lines = [
        {"stream": "stderr", "text": "old"},
        end,
        {"stream": "stderr", "text": "no such column"},
        {"stream": "stdout", "text": "bye"},
        end,
        {"stream": "kernel", "text": "given up"},
    ]

    quote = find_last_error(lines)
    assert quote == "no such column"
    assert find_last_error([*lines[:2], end]) == ""
    assert list(list_problems(attention, {"b": quote})) == ["b failed: exit status 3; on stderr: no such column"]


def test_headers_of_a_narrow_table_are_whole() -> None:
    header, row = fit_columns([["x" * 30, "root/spawned/worker"]], ["NAME", "SUPERVISOR"], ["NAME", "SUPERVISOR"], 22)

    assert header == ["NAME", "SUPERVISOR"]
    assert len("  ".join(row)) == 22


def test_columns_of_a_table_are_those_of_a_terminal() -> None:
    rows = [["你好", "a"], ["plain", "b"]]
    (_, wide), (_, marked) = (fit_columns([[text * 30, "x"]], ["KEY", "V"], ["KEY"], 20) for text in ("你", "\u0301"))

    assert [*format_table(rows, ["KEY", "V"])] == ["KEY    V", "你好   a", "plain  b"]
    assert wide == ["你你你你…你你你你", "x"]
    assert len(marked[0]) == 17, "marks on others are bounded, too"
