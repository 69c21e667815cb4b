"""``agentos spawn``: what an agent's jail is to have, as options."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from agentos.userland.cli.agents.spawn import LIMITS
from agentos_sdk.values import Limits
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, until

SLEEP = ("--", "sleep", "1000")


def shell(agentos: Agentos, command: str, *options: str) -> str:
    """What a shell in a jail of its own prints; it has to end well."""
    done = agentos("spawn", "sh", "--wait", *options, "--", "sh", "-c", command)
    assert done.returncode == 0, done
    return done.stdout


def isolation(agentos: Agentos, name: str, *options: str) -> dict[str, Any]:
    spawned = agentos("spawn", name, "--json", *options, *SLEEP)
    assert spawned.returncode == 0, spawned
    found: dict[str, Any] = json.loads(spawned.stdout)["isolation"]
    return found


def test_without_an_option_it_is_in_a_jail(agentos: Agentos, kernel: Kernel) -> None:
    assert (
        shell(agentos, "pwd; id -u; hostname; ls /agent /workspace") == "/workspace\n1000\nsh\n/agent:\n\n/workspace:\n"
    )
    assert isolation(agentos, "plain")["level"] == "standard"


def test_a_workspace_is_in_memory_or_kept_or_a_directory(agentos: Agentos, kernel: Kernel) -> None:
    for options in ((), ("--workspace", "tmp")):
        assert shell(agentos, "cat note; echo mine > note", *options) == ""
    assert shell(agentos, "cat note 2>/dev/null; echo mine > note", "--workspace", "keep") == ""
    assert shell(agentos, "cat note", "--workspace", "keep") == "mine\n"

    given = kernel.place / "given"
    given.mkdir(mode=0o777)
    (given / "note").write_text("from the host\n")

    assert shell(agentos, "cat note; echo from within > reply", "--workspace", "given") == "from the host\n"
    assert (given / "reply").read_text() == "from within\n"


def test_code_is_a_directory_that_the_script_lies_in(agentos: Agentos, kernel: Kernel) -> None:
    project = kernel.place / "project"
    project.mkdir()
    (project / "main.py").write_text("import other\nprint(other.WORD, __file__)\n")
    (project / "other.py").write_text("WORD = 'imported'\n")

    alone = agentos("spawn", "alone", "--wait", "project/main.py")
    both = agentos("spawn", "both", "--wait", "--code", "project", "project/main.py")

    assert "No module named 'other'" in alone.stderr
    assert (both.stdout, both.returncode) == ("imported /agent/main.py\n", 0)


def test_a_program_of_the_hosts_is_shown_and_the_interpreter_is_there_already(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "tool").write_text("#!/bin/sh\necho $0; ls /agent\n")
    (kernel.place / "tool").chmod(0o755)

    shown = agentos("spawn", "shown", "--wait", "--", "./tool")
    python = agentos("spawn", "python", "--wait", "--", sys.executable, "-c", "import sys; print(sys.prefix)")

    assert (shown.stdout, shown.returncode) == ("/agent/tool\ntool\n", 0)
    assert (python.stdout, python.returncode) == (f"{sys.prefix}\n", 0)


def test_the_network_is_the_hosts_only_if_it_is_asked_for(agentos: Agentos) -> None:
    ours, look = os.readlink("/proc/self/ns/net"), "readlink /proc/self/ns/net"

    assert shell(agentos, look).strip() != ours
    assert shell(agentos, look, "--network").strip() == ours
    assert not isolation(agentos, "open", "--network")["layers"]["net_ns"]["active"]


def test_limits_are_given_by_name(agentos: Agentos) -> None:
    options = ("--limit", "open_files=77", "--limit", "file_size=1M", "--limit=disk=3M", "--limit", "tmp=2M")

    sizes = "df -k --output=size /workspace /tmp | tail -n 2"
    assert shell(agentos, f"ulimit -n; ulimit -f; {sizes}", *options).split() == ["77", "2048", "3072", "2048"]
    assert isolation(agentos, "little", "--limit", "disk=3M")["layers"]["disk"]["asked"] == 3 << 20


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("memory", "--limit memory: expected NAME=VALUE"),
        ("memory=lots", "limits.memory: expected a size such as 256M, got 'lots'"),
        ("momory=1M", "--limit momory: no such limit, did you mean memory?"),
        ("speed=1", f"--limit speed: no such limit, expected one of {', '.join(LIMITS)}"),
        ("max_pids=many", "limits.max_pids: expected a whole number, got 'many'"),
        ("cpu_quota=half", "limits.cpu_quota: expected a share of one CPU such as 50%, got 'half'"),
        ("cpu_weight=0", "limits.cpu_weight: expected 1 to 10000, got 0"),
        ("disk=0", "limits.disk: expected at least 1, got 0"),
    ],
)
def test_a_limit_that_is_none_is_named(agentos: Agentos, given: str, sentence: str) -> None:
    failed = agentos("spawn", "wrong", "--limit", given, *SLEEP)

    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", f"agentos: {sentence}\n")


def test_a_limit_that_is_none_is_named_without_a_jail_too(agentos: Agentos) -> None:
    failed = agentos("spawn", "wrong", "--isolation", "none", "--limit", "memory=0", *SLEEP)

    assert failed.stderr == "agentos: limits.memory: expected at least 2M, a number alone being bytes, got 0\n"


def test_a_framework_brings_its_variables_and_memory_and_what_is_given_wins(agentos: Agentos) -> None:
    def isolation_of(name: str) -> Any:
        return json.loads(agentos("inspect", name, "--json").stdout)["isolation"]

    look = ["--", "sh", "-c", "echo $LANGSMITH_TRACING $OTEL_SDK_DISABLED $TIKTOKEN_CACHE_DIR; ulimit -v; sleep 60"]
    agentos("spawn", "chain", "--framework", "langchain", "--env", "OTEL_SDK_DISABLED=false", *look)
    until(lambda: "tiktoken" in agentos("logs", "chain").stdout, "it has said its variables")
    assert "false false /workspace/.cache/tiktoken" in agentos("logs", "chain").stdout
    assert isolation_of("chain")["layers"]["memory"]["asked"] == 1 << 30
    agentos("kill", "chain")

    agentos("spawn", "small", "--framework", "agents", "--limit", "memory=300M", "--", "sleep", "60")
    assert isolation_of("small")["layers"]["memory"]["asked"] == 300 << 20
    agentos("kill", "small")


def test_every_limit_can_be_given() -> None:
    assert tuple(field.name for field in attrs.fields(Limits)) == LIMITS


def test_best_effort_is_another_word_for_standard(agentos: Agentos) -> None:
    assert isolation(agentos, "best", "--isolation", "best_effort")["layers"]["seccomp"]["active"]


def test_a_command_without_dashes_is_told_how_to_write_it(agentos: Agentos) -> None:
    failed = agentos("spawn", "m", "python3", "x.py")

    assert failed.returncode == 1
    assert failed.stderr.endswith("; for a command write -- before it: agentos spawn m -- python3 ...\n")


def test_strict_is_refused_or_everything(agentos: Agentos) -> None:
    spawned = agentos("spawn", "strict", "--json", "--isolation", "strict", *SLEEP)

    if spawned.returncode == 0:
        found = json.loads(spawned.stdout)["isolation"]
        assert found["level"] == "strict"
        assert [name for name, layer in found["layers"].items() if layer["asked"] and not layer["active"]] == []
    else:
        refused = json.loads(spawned.stdout)
        assert refused["code"] == "isolation_unavailable"
        assert refused["error"].startswith("strict did not start: isolation strict can't be had here: ")


def test_without_isolation_it_is_bare_and_where_we_are(agentos: Agentos, kernel: Kernel) -> None:
    assert shell(agentos, "pwd; id -u", "--isolation", "none").split() == [str(kernel.place), str(os.geteuid())]
    assert shell(agentos, "pwd", "--isolation", "none", "--cwd", "/usr") == "/usr\n"
    found = isolation(agentos, "bare", "--isolation", "none")
    assert found["level"] == "none"
    assert not any(layer["active"] for name, layer in found["layers"].items() if name != "rlimits")


def test_a_fast_one_is_a_script_that_was_never_executed(agentos: Agentos, kernel: Kernel) -> None:
    (kernel.place / "fast.py").write_text("import sys\nprint(sys.flags.no_site, sys.argv)\n")

    done = agentos("spawn", "quick", "--wait", "--runtime", "fast", "fast.py", "one")

    assert (done.stdout, done.returncode) == ("1 ['/agent/fast.py', 'one']\n", 0)
    refused = agentos("spawn", "quicker", "--runtime", "fast", *SLEEP)
    assert refused.stderr == "agentos: runtime: fast runs a script, and this is a command\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--code", "/no/such"), "code: expected a directory, got '/no/such'"),
        (("--workspace", "/no/such"), "workspace: expected tmp, keep or a directory, got '/no/such'"),
        (("--workspace", "/etc"), "workspace: expected a directory that an agent may have, got '/etc': a directory of"),
        (
            ("--cwd", "/etc"),
            "cwd: expected a directory in /workspace, /agent, /tmp, which are all that a jail has, got",
        ),
        (("--filtered", "--isolation", "none"), "network: only a jail can be filtered, and isolation is none: give it"),
        (("--code", ".", "--isolation", "none"), "code: only a jail has this, and isolation is none: leave it out"),
    ],
)
def test_what_a_jail_cannot_have_is_said(agentos: Agentos, options: tuple[str, ...], sentence: str) -> None:
    failed = agentos("spawn", "wrong", *options, *SLEEP)

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith(f"agentos: {sentence}")


@pytest.mark.parametrize("options", [("--isolation", "some"), ("--runtime", "slow")])
def test_a_word_that_an_option_does_not_know_is_status_2(agentos: Agentos, options: tuple[str, ...]) -> None:
    assert agentos("spawn", "x", *options, *SLEEP).returncode == 2


def test_memory_over_its_limit_is_the_end_and_says_so(agentos: Agentos) -> None:
    hog = "x = []\nwhile True: x.append(bytearray(1 << 20))\n"

    done = agentos("spawn", "hog", "--wait", "--limit", "memory=64M", "--", "python3", "-c", hog)

    assert done.returncode in (137, 1)  # killed, or where each process is held to it, told that there is no more
    until(lambda: "ended" in agentos("logs", "hog").stdout, "its end is noted")
    if done.returncode == 137:
        assert "memory limit 64M reached" in agentos("logs", "hog").stdout
        assert re.fullmatch(r"agentos: hog: killed: memory limit 64M reached( \(watched: \w+ \w+\))?\n", done.stderr)


def test_an_agents_files_are_beyond_a_workspace(agentos: Agentos, kernel: Kernel) -> None:
    Path(kernel.place, "outside").write_text("secret")
    (kernel.place / "room").mkdir(mode=0o777)
    os.symlink("../outside", kernel.place / "room" / "link")

    done = agentos("spawn", "sneak", "--wait", "--workspace", "room", "--", "cat", "link")

    assert done.returncode == 1
    assert "No such file" in done.stderr
