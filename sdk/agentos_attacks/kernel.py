"""A kernel to attack: ``agentos run`` with secrets in its environment, and attackers as its agents."""

import contextlib
import fcntl
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.errors import AgentOSError

from .canaries import Canaries
from .harness import ACCEPTED_CHECKS, ATTACKER, PROGRAM, Attacker, AttackResult, Exit

TIMEOUT = 60.0  # seconds for its start, and for its stop
ATTACKER_TIMEOUT = 150.0  # seconds for one attacker
CONFIG = """
[kernel]
log_level = "warning"
waive = ["cpu_quota"]  # without a cgroup CPU can't be limited, and the attackers name a limit
"""
WITHOUT_CGROUPS = {
    "cpu": ("dos.cpu_hog", "no cgroup delegated: CPU can't be limited"),
}

Layers = Mapping[str, Mapping[str, Any]]


class KernelFailed(Exception):
    """The kernel could not be started or didn't stop; the text has its last output."""


@contextlib.contextmanager
def run_kernel(canaries: Canaries, group: str | None = None, timeout: float = TIMEOUT) -> Iterator[AgentOSClient]:
    """A kernel with secrets in its environment, open files and a terminal; it is stopped at the end.

    ``group`` is the directory of a cgroup for it. Raises :class:`NoKernel` if not ready within ``timeout`` seconds.
    """
    socket = canaries.kernel_socket
    socket.parent.mkdir(mode=0o700)
    (socket.parent / "agentos.toml").write_text(CONFIG)
    ours = ("AGENTOS_", "NOTIFY_SOCKET")  # these would connect it to another kernel or service manager
    environment = {name: value for name, value in canaries.environment.items() if not name.startswith(ours)}

    def begin() -> None:
        if group is not None:
            Path(group, "cgroup.procs").write_text("0")
        os.setsid()
        fcntl.ioctl(canaries.terminal, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "agentos", "run"),
            *("--socket", str(socket), "--state-dir", str(socket.parent / "state")),
        ],
        cwd=socket.parent,
        env={**environment, "XDG_RUNTIME_DIR": str(socket.parent)},
        stdin=canaries.terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[canaries.terminal, *canaries.files],
        preexec_fn=begin,
    ) as process:
        try:
            _wait_ready(process, timeout)
            with AgentOSClient(str(socket), timeout) as client:
                yield client
        finally:
            _stop(process, timeout)


def _wait_ready(process: "subprocess.Popen[str]", timeout: float) -> None:
    assert process.stdout is not None
    words = []
    late = threading.Timer(timeout, process.kill)
    late.start()
    try:
        for line in process.stdout:
            words.append(line)
            if " ready, " in line:
                return
    finally:
        late.cancel()
    raise KernelFailed("".join(words) or f"nothing heard of it in {timeout:g} s")


def _stop(process: "subprocess.Popen[str]", timeout: float) -> None:
    process.terminate()
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise KernelFailed(f"it didn't stop in {timeout:g} s") from None
    if process.returncode:
        raise KernelFailed(f"it ended with {process.returncode}: {output}")


def run_attackers(client: AgentOSClient, attackers: Sequence[Attacker]) -> AttackResult:
    """Start the attackers, one after the other."""
    exits: list[Exit] = []
    layers: Layers = {}
    found: Layers
    for number, attacker in enumerate(attackers):
        try:
            ended, found = _run_attacker(client, f"attacker-{number}", attacker)
        except AgentOSError as error:
            ended, found = Exit("", "", start_error=str(error)), {}
        exits.append(ended)
        layers = layers or found
    return AttackResult(exits, {**ACCEPTED_CHECKS, **_find_unlimited(layers)})


def _find_unlimited(layers: Layers) -> Mapping[str, str]:
    """The checks that are accepted because the kernel itself reports that no cgroup limits the resource."""
    return dict(
        accepted
        for name, accepted in WITHOUT_CGROUPS.items()
        if name in layers and not layers[name]["mechanism"].startswith("cgroup")
    )


def _run_attacker(client: AgentOSClient, name: str, attacker: Attacker) -> tuple[Exit, Layers]:
    reply = client.spawn(
        *(name, str(ATTACKER / PROGRAM)),
        code=str(ATTACKER),
        args=[attacker.task],
        limits=attacker.limits,
        isolation=attacker.isolation,
    )
    layers = reply["isolation"]["layers"] if reply["success"] else {}
    end, timed_out = reply, False
    if reply["success"]:
        end = client.wait(name, timeout=ATTACKER_TIMEOUT)
        timed_out = not end["success"]
        if timed_out:
            client.kill(name, grace=0)
    elif attacker.isolation == "strict" and reply.get("code") == "isolation_unavailable":
        return Exit("", "", unavailable=reply["error"]), {}
    elif reply.get("exit_code") is None and reply.get("signal") is None:
        return Exit("", "", start_error=reply["error"]), {}
    lines = client.logs(name, tail=2000)["lines"]
    output = [line["text"] for line in lines if line["text"].startswith("{")]
    noise = [line["text"] for line in lines if not line["text"].startswith("{")]
    reason = f"killed after {ATTACKER_TIMEOUT:g} s" if timed_out else end.get("reason") or end["error"]
    return Exit("\n".join(output), "; ".join((reason, *noise)), killed=not timed_out and end.get("signal") == 9), layers
