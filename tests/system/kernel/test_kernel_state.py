"""STATUS and SHUTDOWN, by call and by command: what needs attention, and an end in order."""

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from agentos.services.mail.mailbox import MAX_ATTEMPTS
from agentos_sdk import AgentOSClient
from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, listens, until
from tests.support.runs.rounds import rounds
from tests.support.wire import RECV, STATUS, frame
from tests.system.agents import STUBBORN, as_agent, ask, in_state, info, relay, up, written
from tests.system.lives.test_containers import BAD, QUICK, child

OFFLINE = '[llm]\nprovider = "offline"\n'
CRASHES = 'restart = "permanent"\nmax_restarts = "unlimited"\nbackoff = { min = 0.1, max = 60 }'


def agentos(kernel: Kernel, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_agentos([*arguments, "--socket", kernel.socket], kernel.place, environment(kernel.place))


def problems(client: AgentOSClient) -> set[tuple[str, str | None]]:
    """What needs attention; on a host without control groups every agent lacks a limit."""
    found: list[dict[str, Any]] = up(client.status())["attention"]
    return {(one["kind"], one["name"]) for one in found if one["kind"] != "isolation"}


def test_status_of_a_kernel_in_order(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(child("well", None, 'command = ["sleep", "1000"]', 'isolation = "none"'))
    with kernel.client() as client:
        found = up(client.status())

    assert (found["agents"], found["attention"], found["model"]) == ({"running": 1}, [], None)
    assert found["config"] == str(kernel.place / "agentos.toml")
    assert found["audit"]["entries"] > 0
    assert (found["audit"]["problem"], found["audit"]["lost"]) == (None, 0)
    assert found["up_ms"] > 0
    shown = agentos(kernel, "status")
    assert (shown.returncode, shown.stdout.splitlines()[0].split()) == (0, ["state", "in", "order"])
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert json.loads(agentos(kernel, "status", "--json").stdout)["attention"] == []


def test_status_while_agents_are_spawned(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    with kernel.client() as client, contextlib.ExitStack() as stack:
        for number in range(60):  # more than it looks at between two checkpoints
            client.spawn(f"a{number}", command=["true"], isolation="none")
        others = [stack.enter_context(kernel.connect()) for _ in range(20)]
        failed = []
        for number in range(rounds(6)):
            for other in others:
                other.write(frame(STATUS, {}) * 5)
            client.spawn(f"b{number}", command=["true"], isolation="none")
            failed += [one for other in others for reply in other.replies(5) if not (one := reply.json)["success"]]
    assert failed == []


def test_status_tells_what_needs_attention(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(OFFLINE + child("given-up", BAD, QUICK) + child("loops", BAD, CRASHES) + child("reads"))
    with kernel.client() as client:
        in_state(client, "given-up", "failed")
        until(lambda: ("restarts", "loops") in problems(client), "it has failed three times in a row")
        spender = relay(kernel, client, "spender", llm={"budget": [{"calls": 1, "per": "1d"}]})
        up(ask(client, spender, "think", prompt="one"))
        up(client.send_message("poison", to_name="reads"))
        for _ in range(MAX_ATTEMPTS):
            with kernel.connect_as(info(client, "reads")["id"]) as wire:
                assert up(wire.call(RECV, {"lease": 60}))["count"] == 1
            up(client.restart("reads"))

        expected = {("failed", "given-up"), ("restarts", "loops"), ("budget", "spender"), ("mail", "reads")}
        assert problems(client) == expected

    shown = agentos(kernel, "status")
    assert shown.returncode == 3
    assert "- given-up failed: exit status 5" in shown.stdout
    assert "- reads has 1 dead letter: `agentos mail reads --dead`" in shown.stdout
    assert "- the budget of spender is used up: 1 calls per 1d; renews in" in shown.stdout


def test_status_names_what_failed_just_now_also_while_it_runs(own_kernel: OwnKernel) -> None:
    lives = 'max_restarts = "unlimited"\nbackoff = { first = 0, min = 0.1, max = 1, reset_after = "1h" }'
    dies = '["sh", "-c", "sleep 0.3; exit 7"]'  # after it was up
    done = '["sh", "-c", "sleep 0.3; exit 6"]'
    once = '["sh", "-c", "test -e /workspace/x && exec sleep 1000; touch /workspace/x; sleep 0.3; exit 8"]'
    kernel = own_kernel(
        child("well")
        + child("loops", dies, lives)
        + child("job", done, 'restart = "temporary"')
        + child("crashed", once, f'{lives}\nworkspace = "keep"')
        + child("missing", '["/usr/bin/no-such-program"]', 'restart = "temporary"')
    )
    with kernel.client() as client:
        until(lambda: info(client, "loops")["restarts"] >= 3, "it loops")
        in_state(client, "job", "exited")
        until(lambda: info(client, "crashed")["restarts"] == 1, "it crashed once")
        in_state(client, "crashed", "running")
        told = {one["name"]: one["text"] for one in up(client.status())["attention"] if one["kind"] == "restarts"}

        assert set(told) == {"loops", "job", "crashed", "missing"}
        assert re.fullmatch(
            r"loops failed \d+ times (in a row|within \S+); the last time: exit status 7", told["loops"]
        )
        assert told["crashed"] == "crashed failed once within 1h; the last time: exit status 8"
        assert told["missing"].startswith("missing failed once within 1m; the last time: command: expected a program")
        up(client.stop("loops"))
        assert "loops" not in [one["name"] for one in up(client.status())["attention"]]


def test_status_names_a_required_agent_that_is_late(own_kernel: OwnKernel) -> None:
    lines = ('ready = "hello"', "required = true", 'start_timeout = "1h"')
    kernel = Kernel(child("late", '["sleep", "1000"]', *lines))
    try:
        until(lambda: listens(kernel.socket), "it can be asked")
        with kernel.client() as client:
            until(lambda: problems(client) == {("late", "late")}, "it is said to be late")
            up(client.shutdown())
        kernel.wait_end()
    finally:
        kernel.clean_up()


def test_status_tells_that_the_audit_log_was_damaged(own_kernel: OwnKernel) -> None:
    kernel = own_kernel()
    kernel.kill()
    for file in (kernel.state_dir / "audit").iterdir():
        if file.suffix != ".head":
            file.unlink()
    kernel.start_again()

    with kernel.client() as client:
        assert ("audit", None) in problems(client)


def test_an_agent_gets_no_status_and_cannot_shut_the_kernel_down(kernel: Kernel, client: AgentOSClient) -> None:
    number = up(client.spawn("curious", command=["sleep", "1000"]))["id"]
    with as_agent(kernel, number) as agent:
        codes = [reply["code"] for reply in (agent.status(), agent.shutdown())]

    assert codes == ["permission_denied"] * 2


def test_shutdown_stops_the_agents_in_order_and_returns_when_the_kernel_has_ended(own_kernel: OwnKernel) -> None:
    kernel = own_kernel(child("well"))

    done = agentos(kernel, "shutdown")

    assert (done.returncode, done.stdout, done.stderr) == (0, "the kernel has stopped\n", "")
    assert kernel.wait_end() == 0
    assert kernel.processes() == []
    assert "SHUTDOWN" in agentos_audit(kernel)
    kernel.start_again()
    kernel.stop()


def agentos_audit(kernel: Kernel) -> str:
    done = run_agentos(["audit", "--state-dir", str(kernel.state_dir)], kernel.place, environment(kernel.place))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_grace_limits_how_long_a_stubborn_agent_has(own_kernel: OwnKernel, tmp_path: Path) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    kernel = own_kernel(child("stubborn", None, f'script = "{tmp_path}/stubborn.py"', 'shutdown = "infinity"'))
    with kernel.client() as client:
        written(client, "stubborn", "deaf now")
        assert up(client.shutdown())["stopping"] is True
        in_state(client, "stubborn", "stopping")
        assert client.shutdown(grace=0.1)["stopping"] is True  # the second one hurries

    assert kernel.wait_end() == 0


def test_a_wrong_grace_stops_nothing(kernel: Kernel, client: AgentOSClient) -> None:
    up(client.spawn("well", command=["sleep", "1000"]))
    for grace in (-1, "soon"):
        assert client.shutdown(grace=grace)["code"] == "bad_request"  # type: ignore[arg-type]
        assert info(client, "well")["state"] == "running"
