"""Agents of a file that name something which the host lacks: they fail alone, and begin when it is there."""

import os

from tests.conftest import OwnKernel
from tests.system.agents import in_state, info, up
from tests.system.lives.test_containers import SLEEPS, child, states

AGAIN = 'max_restarts = "unlimited"\nbackoff = { first = 0.1, min = 0.1, max = 1 }'
LACKING = {  # what an agent's table has, and how its failure begins
    "script": ('["sh", "-c", "exec sleep 1000"]', 'workspace = "made-later"', "workspace .*: not a directory"),
    "program": ('["./made-later/run"]', "", "command: expected a program that can be run"),
    "code": ('["sh", "-c", "exec sleep 1000"]', 'code = "made-later"', "code: expected a directory"),
    "python": ('["sh", "-c", "exec sleep 1000"]', 'python = "made-later/bin/python"', "python: expected an interp"),
    "cwd": ('["sleep", "1000"]', 'isolation = "none"\ncwd = "made-later"', "cwd: there is no directory"),
}


def test_agents_that_lack_something_fail_alone_and_begin_when_it_is_there(own_kernel: OwnKernel) -> None:
    """They hinder no reload, which refuses what it would begin and what lacks something."""
    one = child("one")
    text = (
        "".join(child(name, program, f"{AGAIN}\n{more}") for name, (program, more, _) in LACKING.items())
        + child("job", '["/usr/bin/no-such-program"]', 'restart = "temporary"')
        + one
        + child("two")
        + '[mcp.servers.notes]\ncommand = ["/nowhere/server"]\n'
    )
    kernel = own_kernel(text)
    file = kernel.place / "agentos.toml"
    with kernel.client() as client:
        assert {states(client)[name] for name in ("one", "two")} == {"running"}
        for name, (_, _, why) in LACKING.items():
            kernel.wait_line(f"{name}: {why}")
        kernel.wait_line("job: command: expected a program that can be run")
        in_state(client, "job", "exited")

        before = info(client, "one")["pid"]
        refused = text.replace(one, child("one", '["./gone"]'))
        file.write_text(refused)
        line = refused[: refused.index("./gone")].count("\n") + 1
        why = f"supervisor.children[{len(LACKING) + 1}].command[0]: expected a program that can be run"
        assert client.reload()["error"].startswith(f"{file}:{line}: {why}")
        assert info(client, "one")["pid"] == before

        file.write_text(text.replace(one, child("one", '["sleep", "1001"]') + child("new", SLEEPS)))
        changes = up(client.reload())["changes"]
        assert {each["agent"]: each["change"] for each in changes} == {"one": "restarted", "new": "added"}
        in_state(client, "new", "running")

        place = kernel.place / "made-later"
        (place / "bin").mkdir(parents=True)
        os.symlink("/usr/bin/env", place / "bin/env")
        (place / "run").write_text("#!/bin/sh\nexec sleep 1000\n")
        (place / "run").chmod(0o755)
        for name in ("script", "program", "code", "cwd"):
            in_state(client, name, "running")
