"""``agentos permissions``, and ``agentos spawn --permissions``."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from agentos.permissions.levels import LEVELS
from agentos.permissions.link_sets import LINK_SETS
from agentos.userland.cli.common import Failed
from agentos.userland.cli.permissions.permissions import request
from tests.cli.conftest import Agentos
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.runs.rows import each_row

SLEEP = ("--", "sleep", "1000")

CONFIG = """
[permissions.researcher]
level = "readonly"
spawn = { limits = { memory = "64M", cpu_quota = "33%" } }
quotas = [{ tokens = 10000, per = "1h" }]

[permissions.researcher.allow]
read = ["/data/**"]
models = ["gemini-*"]

[permissions.researcher.deny]
read = ["/data/private/"]
"""


def show(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without a kernel."""
    return run_agentos(["permissions", "show", *arguments], place, environment(place))


def test_show_spells_a_level_out_without_a_kernel(tmp_path: Path) -> None:
    assert show(tmp_path, "readonly").stdout == (
        "level readonly\n"
        "allow\n"
        "  calls     NOOP  HELLO  CANCEL  EXIT  RECV  ACK  GET_PERMS  NOW  SLEEP  RANDOM  READ  LIST  TREE\n"
        "            FETCH  SUBSCRIBE  UNSUBSCRIBE  POLL_EVENTS\n"
        "  read      ${workspace}/**  ${code}/**\n"
        "  send      ${parent}\n"
        "denied to every caller: see `agentos permissions show denials`\n"
    )


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_is_shown_for_people_and_for_programs(tmp_path: Path, level: str) -> None:
    shown = show(tmp_path, level).stdout
    said = json.loads(show(tmp_path, level, "--json").stdout)

    assert said["level"] == level
    for rule in LEVELS[level].rules:
        assert rule.text in said[rule.effect][rule.kind]
        assert rule.text in shown


def test_what_links_to_the_dashboard_may_do_is_shown_unless_a_set_has_the_name(tmp_path: Path) -> None:
    for name, given in LINK_SETS.items():
        said = json.loads(show(tmp_path, name, "--json").stdout)
        assert said["allow"]["calls"] == [rule.text for rule in given.rules if rule.kind == "calls"]
    (tmp_path / "agentos.toml").write_text('[permissions.viewer]\nlevel = "minimal"\ndeny = { calls = ["RECV"] }\n')
    assert "deny\n  calls     RECV\n" in show(tmp_path, "viewer").stdout


def test_show_takes_a_set_of_the_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text(CONFIG)
    (tmp_path / "other.toml").write_text('[permissions.mine]\nlevel = "minimal"\ndeny = { calls = ["RECV"] }\n')

    shown = show(tmp_path, "researcher").stdout

    assert "  read      /data/**  ${workspace}/**  ${code}/**\n" in shown
    assert "deny\n  read      /data/private/\n" in shown
    assert "spawned agents get at most\n  memory 64M, cpu_quota 33%\n" in shown
    assert "quotas\n  10000 tokens per 1h\n" in shown
    assert "deny\n  calls     RECV\n" in show(tmp_path, "mine", "--config", "other.toml").stdout


def test_show_of_what_there_is_not_says_what_there_is(tmp_path: Path) -> None:
    assert show(tmp_path, "ops").stderr == (
        "agentos: no level or permission set is called 'ops'; there is no agentos.toml here: say where with --config\n"
    )
    (tmp_path / "agentos.toml").write_text(CONFIG)
    done = show(tmp_path, "researchr")
    assert (done.returncode, done.stderr) == (
        1,
        "agentos: no level or permission set is called 'researchr', did you mean researcher?\n",
    )
    (tmp_path / "agentos.toml").write_text("[permissions.x]\nlevl = 1\n")
    done = show(tmp_path, "x")
    assert (done.returncode, done.stderr) == (
        1,
        "agentos: agentos.toml:2: permissions.x.levl: unknown field, did you mean level?\n",
    )
    assert show(tmp_path, "minimal").returncode == 0  # for which the file doesn't matter


def test_show_lists_what_is_denied_to_every_caller(tmp_path: Path) -> None:
    shown = show(tmp_path, "denials").stdout
    said = json.loads(show(tmp_path, "denials", "--json").stdout)

    assert set(said) == {"read, write", "commands"}
    for word in (".ssh/", ".env", "sudo", "mkfs", "rm"):
        assert re.search(rf"(^|\s){re.escape(word)}(\s|$)", shown)


def test_get_and_set_an_agents_permissions(agentos: Agentos, kernel: Kernel) -> None:
    agentos("spawn", "worker", *SLEEP)
    assert agentos("permissions", "get", "worker").stdout == (
        "level sandboxed: see `agentos permissions show sandboxed`\n"
    )

    done = agentos("permissions", "set", "worker", "readonly")
    assert done.stdout == "worker has other permissions from now on\n"
    assert json.loads(agentos("permissions", "get", "worker", "--json").stdout)["permissions"]["level"] == "readonly"

    (kernel.place / "set.json").write_text(
        '{"allow": {"read": ["/data/**"]}, "quotas": [{"calls": 5, "http_bytes": "10M", "per": "1m"}]}'
    )
    number = json.loads(agentos("permissions", "set", "worker", "set.json", "--json").stdout)["agent_id"]
    assert agentos("permissions", "get", str(number)).stdout.splitlines() == [
        "allow",
        "  calls     NOOP  HELLO  CANCEL  EXIT  RECV  ACK  GET_PERMS  NOW  SLEEP  RANDOM",
        "  read      /data/**",
        "quotas",
        "  5 calls, 10M http_bytes per 1m",
    ]


def test_get_shows_within_what_it_holds(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "spawns.py").write_text(
        "from agentos import AgentOSClient\n"
        "with AgentOSClient() as kernel:\n"
        "    kernel.spawn('child', command=['sleep', '1000'], permissions='readonly')\n"
        "    kernel.recv_messages(timeout=1000)\n"
    )
    agentos("spawn", "boss", "--permissions", '{"level": "sandboxed", "deny": {"calls": ["THINK"]}}', "spawns.py")
    until(lambda: agentos("permissions", "get", "child").returncode == 0, "it has spawned a child")

    said = agentos("permissions", "get", "child").stdout

    assert re.sub(r"#\d+", "#N", said).splitlines() == [
        "level readonly: see `agentos permissions show readonly`",
        "and within SPAWN by operator#N:",
        "level sandboxed: see `agentos permissions show sandboxed`",
        "deny",
        "  calls     THINK",
    ]


def test_set_says_what_is_wrong_with_a_set(agentos: Agentos, kernel: Kernel) -> None:
    agentos("spawn", "worker", *SLEEP)
    (kernel.place / "list.json").write_text("[]")

    def said(given: str) -> str:
        done = agentos("permissions", "set", "worker", given)
        assert done.returncode == 1
        return done.stderr

    assert said("redonly") == (
        "agentos: permissions: no level or permission set is called 'redonly', did you mean readonly?\n"
    )
    assert said("missing.json") == "agentos: missing.json: No such file or directory\n"
    assert said("list.json") == "agentos: list.json: expected a JSON object\n"
    assert said("{") == (
        "agentos: the set: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)\n"
    )
    assert said('{"alow": {}}') == "agentos: permissions.alow: unknown field, did you mean allow?\n"


def test_explain_shows_the_decision_the_rule_and_the_reason(agentos: Agentos) -> None:
    agentos("spawn", "worker", *SLEEP)

    done = agentos("permissions", "explain", "worker", "metrics_system")
    assert (done.returncode, done.stdout) == (
        0,
        "decision  deny\n"
        "rule      no rule (level sandboxed)\n"
        "reason    METRICS_SYSTEM: no rule of level sandboxed allows it\n",
    )
    told = json.loads(agentos("permissions", "explain", "worker", "READ", "notes.md", "--json").stdout)
    assert (told["decision"], told["rule"]) == ("allow", "allow read ${workspace}/** (level readonly)")
    done = agentos("permissions", "explain", "worker", "LSIT")
    assert (done.returncode, done.stderr) == (1, "agentos: no call is named 'LSIT', did you mean LIST?\n")
    told = json.loads(agentos("permissions", "explain", "worker", "EXEC", "--json", "--", "wc", "-l", "--json").stdout)
    assert told["reason"].startswith("EXEC wc -l --json: allowed")


@each_row(
    ("call", "args", "fields"),
    [
        ("READ", ["/x"], {"path": "/x"}),
        ("WRITE", ["/x"], {"path": "/x", "content": ""}),
        ("EXEC", ["ls; rm x"], {"command": "ls; rm x"}),
        ("EXEC", ["ls", "-l"], {"command": ["ls", "-l"]}),
        ("HTTP", ["https://example.com"], {"url": "https://example.com"}),
        ("HTTP", ["example.com/x"], {"url": "https://example.com/x"}),
        ("HTTP", ["POST", "http://example.com"], {"url": "http://example.com", "method": "POST"}),
        ("HTTP", ["GET example.com"], {"url": "https://example.com", "method": "GET"}),
        ("HTTP", ["CONNECT", "example.com:22"], {"url": "example.com:22", "method": "CONNECT"}),
        ("THINK", ["gemini-2"], {"prompt": "?", "model": "gemini-2"}),
        ("THINK", [], {"prompt": "?"}),
        ("SEND", ["bob"], {"to_name": "bob", "message": None}),
        ("KILL", ["bob"], {"name": "bob"}),
        ("KILL", ["7"], {"id": 7}),
        ("SPAWN", ['{"name": "x"}'], {"name": "x"}),
        ("LIST", [], {}),
    ],
)
def test_a_few_words_are_a_request(call: str, args: list[str], fields: dict[str, object]) -> None:
    assert request(call, args) == fields


@each_row(
    ("call", "args", "told"),
    [
        ("THINKK", ["gemini"], "no call is named 'THINKK', did you mean THINK?"),
        ("READ", [], "READ: expected a path"),
        ("SEND", [], "SEND: expected a name"),
        ("KILL", [], "KILL: expected a name or an id"),
        ("LIST", ["x"], "x: expected the request of LIST in JSON, such as '{}'"),
    ],
)
def test_words_that_mean_no_request_are_said_to(call: str, args: list[str], told: str) -> None:
    with pytest.raises(Failed) as failed:
        request(call, args)
    assert failed.value.message == told


def test_spawn_takes_permissions(agentos: Agentos, kernel: Kernel) -> None:
    agentos("spawn", "low", "--permissions", "minimal", *SLEEP)
    agentos("spawn", "own", "--permissions", '{"level": "readonly", "deny": {"calls": ["TREE"]}}', *SLEEP)

    assert agentos("permissions", "get", "low").stdout.startswith("level minimal: ")
    assert agentos("permissions", "get", "own").stdout.startswith(
        "level readonly: see `agentos permissions show readonly`\ndeny\n  calls     TREE\n"
    )
    (kernel.place / "set.json").write_text('{"level": "minimal", "allow": {"calls": ["LIST"]}}')
    agentos("spawn", "filed", "--permissions", "set.json", *SLEEP)
    assert agentos("permissions", "get", "filed").stdout.startswith(
        "level minimal: see `agentos permissions show minimal`\nallow\n  calls     LIST\n"
    )
    done = agentos("spawn", "bad", "--permissions", "lots", *SLEEP)
    assert (done.returncode, done.stderr) == (
        1,
        "agentos: permissions: no level or permission set is called 'lots'\n",
    )
