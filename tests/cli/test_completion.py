"""``agentos completion``: real shells complete commands, options and the names of agents that run."""

import contextlib
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.userland.cli.completion import SHELLS
from tests.cli.conftest import Agentos
from tests.support.kernel import Kernel, environment, until
from tests.support.wire import PATIENCE

START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "--interactive"],
}
SET_UP = {
    "bash": 'bind "set enable-bracketed-paste off"; eval "$(agentos completion bash)"; PS1=; echo set up',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(agentos completion zsh)"; PS1=; echo set up',
    "fish": "agentos completion fish | source; echo set up",
}


class Shell:
    """A shell in a terminal, in which keys are typed."""

    def __init__(self, shell: str, kernel: Kernel) -> None:
        self.data = b""
        self.master, slave = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        given = {"AGENTOS_SOCKET": kernel.socket, "TERM": "dumb", "PATH": path}
        self.process = subprocess.Popen(
            ["setsid", "-c", *START[shell]],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment(kernel.place), **given},
            cwd=kernel.place,
        )
        os.close(slave)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                self.data += data

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def wait_for(self, text: str, count: int = 1) -> None:
        until(lambda: self.data.decode(errors="replace").count(text) >= count, f"{text!r} is shown")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, kernel: Kernel) -> Iterator[Shell]:
    """Each shell, with completion set up."""
    if shutil.which(request.param) is None:
        pytest.skip(f"completion of {request.param} isn't tried: {request.param} isn't installed here")
    started = Shell(request.param, kernel)
    try:
        started.type(SET_UP[request.param] + "\r")
        started.wait_for("set up\r\n", 1)
        yield started
    finally:
        started.close()


def test_a_tab_completes_commands_and_names_of_agents(shell: Shell, kernel: Kernel, agentos: Agentos) -> None:
    kernel.spawn("early-bird")

    shell.type('agentos insp\tearly\t --json | grep -o \'"name": "early-bird"\'\r')

    shell.wait_for('\n"name": "early-bird"\r')


def complete(agentos: Agentos, *words: str, **env: str) -> list[str]:
    """What is completed for the last of these words."""
    asked = {"_AGENTOS_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    done = agentos(**asked, COMP_WORDS=" ".join(["agentos", *(word or "''" for word in words)]), **env)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_each_argument_has_its_names(kernel: Kernel, agentos: Agentos) -> None:
    for name in ("night-owl", "nightjar"):
        kernel.spawn(name)
    with kernel.client() as client:
        client.store("color/sky", "blue")
        for key in ("color of grass", "color;reboot", "color$(reboot)", "color`reboot`", "color\nreboot", "color|sh"):
            assert client.store(key, "green")["success"] or "\n" in key

    both = ["night-owl", "nightjar"]
    assert complete(agentos, "kill", "n") == both
    assert complete(agentos, "logs", "--json", "night-owl", "n") == ["nightjar"], "what was typed isn't offered again"
    assert complete(agentos, "exec", "night-") == ["night-owl"]
    assert complete(agentos, "cp", "night-") == ["night-owl:"]
    assert complete(agentos, "events", "--agent", "n") == both
    assert complete(agentos, "permissions", "get", "n") == both
    assert complete(agentos, "state", "get", "co") == ["color/sky"], "no key of an agent's adds a command to the line"
    assert complete(agentos, "new", "--template", "th") == ["thinker"]
    assert complete(agentos, "demo", "hel") == ["hello"]
    assert "kill" in complete(agentos, "")


def test_without_a_kernel_there_is_nothing_to_complete(agentos: Agentos, tmp_path: Path) -> None:
    assert complete(agentos, "kill", "n", AGENTOS_SOCKET=str(tmp_path / "none")) == []
    assert complete(agentos, "kill", "--socket", str(tmp_path / "none"), "n") == []


def test_another_shell_is_refused_with_those_there_are(agentos: Agentos) -> None:
    refused = agentos("completion", "tcsh")

    assert refused.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in refused.stderr
