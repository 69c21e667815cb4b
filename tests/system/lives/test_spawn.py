"""SPAWN: when it answers, and what it refuses."""

import os
import time

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.opcodes import Op
from tests.support.kernel import Kernel
from tests.support.runs.rows import each_row
from tests.support.wire import PATIENCE
from tests.system.agents import SLEEPER, in_state, info, known, up, write
from tests.system.jails import cgroups

CONNECTS = """
import time
from agentos_sdk import AgentOSClient
time.sleep({before})
with AgentOSClient() as me:
    time.sleep(1000)
"""


def test_an_agent_that_stays_alive_counts_as_started_after_200_ms(kernel: Kernel, client: AgentOSClient) -> None:
    began = time.monotonic()

    reply = up(client.spawn("quiet", write(kernel, "quiet.py", SLEEPER)))

    assert time.monotonic() - began > 0.19
    assert reply["status"] == info(client, "quiet")["state"] == "running"
    assert reply["restart_policy"] == "never"
    os.kill(reply["pid"], 0)


def test_an_agent_that_has_connected_counts_as_started_however_soon_it_ends(
    kernel: Kernel, client: AgentOSClient
) -> None:
    text = CONNECTS.format(before=0).replace("time.sleep(1000)", "me.echo('here'); raise SystemExit(4)")

    up(client.spawn("connects", write(kernel, "connects.py", text)))

    assert client.wait("connects", timeout=PATIENCE)["exit_code"] == 4


def test_a_program_that_ends_at_once_is_an_error_with_its_status_and_its_last_lines(client: AgentOSClient) -> None:
    script = "echo to nobody; seq 9 >&2; echo out >&2; echo of ideas >&2; exit 7"
    reply = client.spawn("brief", command=["sh", "-c", script], ready="hello")

    assert (reply["success"], reply["code"], reply["exit_code"], reply["signal"]) == (False, "unavailable", 7, None)
    last = [*"23456789", "out", "of ideas"]
    assert reply["error"] == "\n".join(["brief did not start: exit status 7 before it was ready", *last])
    assert reply["stderr"] == last
    assert in_state(client, "brief", "exited")["restarts"] == 0


def test_an_early_end_by_a_signal_says_which(client: AgentOSClient) -> None:
    reply = client.spawn("shot", command=["sh", "-c", "kill -USR1 $$"], ready="hello")

    assert (reply["exit_code"], reply["signal"]) == (None, 10)
    assert "killed by SIGUSR1" in reply["error"]


def test_a_failed_start_is_not_tried_again_whatever_the_restart_type(client: AgentOSClient) -> None:
    reply = client.spawn("never-up", command=["false"], restart="permanent", ready="hello")

    assert not reply["success"]
    assert client.wait("never-up", timeout=PATIENCE)["exit_code"] == 1


def test_ready_hello_waits_for_it(kernel: Kernel, client: AgentOSClient) -> None:
    text = CONNECTS.format(before=0.5).replace("    time.sleep(1000)", "    me.hello()\n    time.sleep(1000)")
    began = time.monotonic()

    up(client.spawn("polite", write(kernel, "polite.py", text), ready="hello"))

    assert time.monotonic() - began > 0.5


def test_ready_hello_is_not_met_by_a_connection_alone(kernel: Kernel, client: AgentOSClient) -> None:
    text = CONNECTS.format(before=0).replace("time.sleep(1000)", "me.echo('no hello'); raise SystemExit(4)")

    reply = client.spawn("rude", write(kernel, "rude.py", text), ready="hello")

    assert reply["exit_code"] == 4, reply
    assert "before it was ready" in reply["error"]


def test_the_spawner_of_an_agent_that_is_killed_while_it_starts_is_told(kernel: Kernel, client: AgentOSClient) -> None:
    with kernel.connect() as other:
        other.send(0x10, {"name": "hushed", "command": ["sleep", "1000"], "ready": "hello"})
        known(client, "hushed")

        assert client.kill("hushed")

        reply = other.receive().json
    assert (reply["success"], reply["code"]) == (False, "unavailable")
    assert "stopped" in reply["error"]


def test_a_caller_that_goes_away_while_its_agent_starts_takes_it_along(kernel: Kernel, client: AgentOSClient) -> None:
    with kernel.connect() as other:
        other.send(0x10, {"name": "unwanted", "command": ["sleep", "1000"], "ready": "hello"})
        pid = known(client, "unwanted")

    in_state(client, "unwanted", "exited")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_script_with_a_mistake_in_it_is_said_with_its_line(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "typo.py", "x = 1\ndef f(:\n")

    reply = client.spawn("typo", script, ready="hello")

    assert reply["error"].startswith("typo did not start: exit status 1 before it was ready\n")
    assert (reply["exit_code"], reply["signal"]) == (1, None)
    assert reply["stderr"] == [
        '  File "/agent/typo.py", line 2',
        "    def f(:",
        "          ^",
        "SyntaxError: invalid syntax",
    ]


@pytest.mark.parametrize("sandboxed", [True, False])
def test_a_script_that_is_removed_between_two_lives_is_a_failed_start(
    kernel: Kernel, client: AgentOSClient, sandboxed: bool
) -> None:
    name = f"brief-{sandboxed}"
    script = write(kernel, f"{name}.py", SLEEPER)
    backoff = {"first": 0.1, "min": 0.1, "max": 0.1, "max_failures": 3}
    up(client.spawn(name, script, restart="permanent", max_restarts=1, backoff=backoff, sandboxed=sandboxed))

    os.unlink(script)
    os.kill(known(client, name), 9)

    assert client.wait(name, timeout=PATIENCE)["success"]
    assert info(client, name)["state"] == "failed"
    notes = [line["text"] for line in client.logs(name)["lines"] if line["stream"] != "stdout"]
    assert any("No such file or directory" in line for line in notes), notes


def refused(client: AgentOSClient, **fields: object) -> tuple[str, str]:
    reply = client.request(Op.SPAWN, {"name": "refused", **fields})
    assert reply["success"] is False, reply
    return reply["code"], reply["error"].partition(":")[0]


@each_row("name", ["", "a b", "-a", ".a", "a/b", "ä", "a" * 65, "a\n", "a\0"])
def test_a_malformed_name_is_refused(kernel: Kernel, name: str) -> None:
    with kernel.client() as client:
        assert refused(client, name=name, command=["true"]) == ("bad_request", "name")


@each_row("name", ["123", "kernel", "root", "spawned"])
def test_a_name_that_would_mislead_a_person_is_refused(kernel: Kernel, name: str) -> None:
    with kernel.client() as client:
        assert refused(client, name=name, command=["true"])[0] in ("bad_request", "already_exists")
        assert client.register_name(name)["code"] in ("bad_request", "already_exists")


def test_a_taken_name_is_refused_and_free_again_afterwards(client: AgentOSClient) -> None:
    first = up(client.spawn("solo", command=["sleep", "1000"]))

    assert refused(client, name="solo", command=["true"]) == ("already_exists", "name")

    client.kill("solo")
    second = up(client.spawn("solo", command=["sleep", "1000"]))
    assert second["id"] > first["id"]


def test_a_name_that_another_caller_registered_is_taken(client: AgentOSClient) -> None:
    up(client.register_name("me"))

    assert refused(client, name="me", command=["true"]) == ("already_exists", "name")


def test_two_callers_that_ask_for_one_name_at_once_get_one_agent(kernel: Kernel, client: AgentOSClient) -> None:
    with kernel.connect() as one, kernel.connect() as two:
        for wire in (one, two):
            wire.send(0x10, {"name": "both", "command": ["sleep", "1000"]})

        replies = [one.receive().json, two.receive().json]

    assert sorted(reply["success"] for reply in replies) == [False, True]
    assert [reply["code"] for reply in replies if not reply["success"]] == ["already_exists"]


def test_what_is_to_run_must_be_there_and_readable(kernel: Kernel, client: AgentOSClient) -> None:
    fifo = str(kernel.place / "fifo")
    os.mkfifo(fifo)

    assert refused(client, script="/no/such.py") == ("not_found", "script")
    assert refused(client, script=str(kernel.place)) == ("bad_request", "script")
    assert refused(client, script=fifo) == ("bad_request", "script")
    assert refused(client, command=["/no/such"]) == ("not_found", "command")
    assert refused(client, command=[str(kernel.place)]) == ("not_found", "command")
    assert refused(client, script=write(kernel, "s.py", SLEEPER), python="/no/such") == ("not_found", "python")


def test_what_is_to_run_inside_must_be_there_too(client: AgentOSClient) -> None:
    for command in ("no-such-program", "/usr/bin/no-such-program", "/workspace/no-such", "/agent/no-such"):
        assert refused(client, command=[command]) == ("not_found", "refused did not start")
    assert refused(client, command=["/usr/bin"]) == ("unavailable", "refused did not start")
    assert refused(client, command=["true"], cwd="/no/such") == ("bad_request", "cwd")
    assert refused(client, command=["true"], cwd="/workspace/no/such") == ("not_found", "refused did not start")


def test_without_a_jail_it_must_be_there_before_anything_is_tried(kernel: Kernel, client: AgentOSClient) -> None:
    bare = {"sandboxed": False}
    for command in ("/no/such", "no-such-program", str(kernel.place)):
        assert refused(client, command=[command], **bare) == ("not_found", "command")
    assert refused(client, command=["true"], cwd="/no/such", **bare) == ("not_found", "cwd")


@each_row("text", ["a\0b", "a\ud800b"])
@each_row("field", ["script", "command", "args", "env", "cwd", "code", "workspace", "python"])
@each_row("sandboxed", [True, False])
def test_what_no_program_can_be_given_is_refused(kernel: Kernel, field: str, text: str, sandboxed: bool) -> None:
    with kernel.client() as client:
        value = {"command": ["true", text], "args": [text], "env": {"A": text}}.get(field, text)
        fields = {"command": ["true"]} if field != "script" else {}

        code, where = refused(client, **{**fields, field: value}, sandboxed=sandboxed)

        assert (code, where.partition("[")[0].partition(".")[0]) == ("bad_request", field)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_script_that_may_not_be_read_is_refused(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "secret.py", SLEEPER)
    os.chmod(script, 0)

    assert refused(client, script=script) == ("bad_request", "script")


def test_exactly_one_of_script_and_command(kernel: Kernel, client: AgentOSClient) -> None:
    script = write(kernel, "s.py", SLEEPER)

    assert refused(client) == ("bad_request", "script")
    assert refused(client, script=script, command=["true"]) == ("bad_request", "script")
    assert refused(client, command=[]) == ("bad_request", "script")


@pytest.mark.parametrize("name", ["", "A=B", "AGENTOS_SOCKET", "AGENTOS_X"])
def test_a_variable_that_is_none_or_ours_is_refused(client: AgentOSClient, name: str) -> None:
    assert refused(client, command=["true"], env={name: "x"}) == ("bad_request", f"env.{name}")


@each_row(
    ("field", "value"),
    [
        ("restart", "sometimes"),
        ("max_restarts", -1),
        ("max_restarts", 100_000_000),
        ("restart_window", 0),
        ("shutdown", "soon"),
        ("backoff", {"min": 5, "max": 1}),
        ("ready", "set"),
        ("limits", {"memory": "lots"}),
        ("args", "one"),
        ("nonsense", 1),
    ],
)
def test_a_wrong_field_is_named(kernel: Kernel, field: str, value: object) -> None:
    with kernel.client() as client:
        code, where = refused(client, command=["sleep", "1000"], **{field: value})

        assert code == "bad_request"
        assert where.split(".")[0] == field


def test_a_backoff_that_makes_intensity_unreachable_is_refused(client: AgentOSClient) -> None:
    reply = client.spawn("slow", command=["sleep", "9"], restart="permanent", backoff={"min": 60, "max": 60})

    assert (reply["code"], reply["error"].split(":")[0]) == ("bad_request", "backoff")


def test_spawn_says_truthfully_that_nothing_isolates(client: AgentOSClient) -> None:
    reply = up(client.spawn("bare", command=["sleep", "1000"], sandboxed=False))

    layers = reply["isolation"]["layers"]
    assert reply["isolation"]["level"] == "none"
    assert len(layers) == 18
    assert [name for name, layer in layers.items() if layer["active"]] == ["rlimits"]
    assert all(layer["reason"] for name, layer in layers.items() if name != "rlimits")


def test_a_limit_by_name_holds_without_a_jail_too_or_is_refused(kernel: Kernel, client: AgentOSClient) -> None:
    reply = client.spawn("bounded", command=["sleep", "1000"], sandboxed=False, limits={"memory": "256M"})

    if cgroups(kernel) is None:
        assert reply["code"] == "isolation_unavailable"
    else:
        layers = up(reply)["isolation"]["layers"]
        assert [name for name, layer in layers.items() if layer["active"]] == ["rlimits", "memory"]
        assert layers["memory"]["asked"] == 256 << 20


def test_strict_isolation_is_given_whole_or_refused(client: AgentOSClient) -> None:
    reply = client.spawn("strict", command=["sleep", "1000"], isolation="strict")

    if reply["success"]:
        assert reply["isolation"]["level"] == "strict"
        assert all(layer["active"] for layer in reply["isolation"]["layers"].values() if layer["asked"])
    else:
        assert reply["code"] == "isolation_unavailable"
        assert info(client, "strict")["pid"] is None


def test_the_words_of_the_original_for_restart_are_understood(client: AgentOSClient) -> None:
    reply = up(client.spawn("old", command=["sleep", "1000"], restart_policy="on-failure"))

    assert reply["restart_policy"] == "on-failure"
    assert refused(client, command=["true"], restart="permanent", restart_policy="always")[0] == "bad_request"
