"""A kernel to attack: ``agentos run`` as a careless user would start it, with attackers as its agents."""

import contextlib
import fcntl
import os
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentos_sdk.blocking import AgentOSClient
from agentos_sdk.errors import AgentOSError

from .canaries import Canaries
from .harness import ACCEPTED, ATTACKER, PROGRAM, Ended, Outcome, Shot

PATIENCE = 60.0  # seconds for its start, and for its stop
DEADLINE = 150.0  # seconds for one attacker
CONFIG = """
[kernel]
log_level = "warning"
waive = ["cpu_quota"]  # without a cgroup CPU can't be limited, and the attackers name a limit
"""
WITHOUT_CGROUPS = {
    "cpu": ("dos.cpu_hog", "no cgroup delegated: CPU can't be limited"),
}

Layers = Mapping[str, Mapping[str, Any]]


class NoKernel(Exception):
    """The kernel could not be started or didn't stop; the text has its last output."""


@contextlib.contextmanager
def running(
    canaries: Canaries, join: Callable[[], None] | None = None, patience: float = PATIENCE
) -> Iterator[AgentOSClient]:
    """A kernel with secrets in its environment, open files and a terminal; it is stopped at the end.

    ``join`` is called in its process before exec. Raises :class:`NoKernel` if not ready within ``patience`` seconds.
    """
    socket = canaries.kernel_socket
    socket.parent.mkdir(mode=0o700)
    (socket.parent / "agentos.toml").write_text(CONFIG)
    ours = ("AGENTOS_", "NOTIFY_SOCKET")  # these would connect it to another kernel or service manager
    environment = {name: value for name, value in canaries.environment.items() if not name.startswith(ours)}

    def begin() -> None:
        if join is not None:
            join()
        os.setsid()
        fcntl.ioctl(canaries.terminal, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        [sys.executable, "-m", "agentos", "run", "--socket", str(socket), "--state-dir", str(socket.parent / "state")],
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
            _wait_ready(process, patience)
            with AgentOSClient(str(socket), patience) as client:
                yield client
        finally:
            _stop(process, patience)


def _wait_ready(process: "subprocess.Popen[str]", patience: float) -> None:
    assert process.stdout is not None
    words = []
    late = threading.Timer(patience, process.kill)
    late.start()
    try:
        for line in process.stdout:
            words.append(line)
            if " ready, " in line:
                return
    finally:
        late.cancel()
    raise NoKernel("".join(words) or f"nothing heard of it in {patience:g} s")


def _stop(process: "subprocess.Popen[str]", patience: float) -> None:
    process.terminate()
    try:
        said, _ = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        raise NoKernel(f"it didn't stop in {patience:g} s") from None
    if process.returncode:
        raise NoKernel(f"it ended with {process.returncode}: {said}")


def attacked(client: AgentOSClient, shots: Sequence[Shot]) -> Outcome:
    """Start the attackers, one after the other."""
    endings: list[Ended] = []
    layers: Layers = {}
    found: Layers
    for number, shot in enumerate(shots):
        try:
            ended, found = _attacked(client, f"attacker-{number}", shot)
        except AgentOSError as error:
            ended, found = Ended("", "", problem=str(error)), {}
        endings.append(ended)
        layers = layers or found
    return Outcome(endings, {**ACCEPTED, **_not_limited(layers)})


def _not_limited(layers: Layers) -> Mapping[str, str]:
    """The checks that are accepted because the kernel itself reports that no cgroup limits the resource."""
    return dict(
        accepted
        for name, accepted in WITHOUT_CGROUPS.items()
        if name in layers and not layers[name]["mechanism"].startswith("cgroup")
    )


def _attacked(client: AgentOSClient, name: str, shot: Shot) -> tuple[Ended, Layers]:
    reply = client.spawn(
        *(name, str(ATTACKER / PROGRAM)),
        code=str(ATTACKER),
        args=[shot.order],
        limits=shot.limits,
        isolation=shot.isolation,
    )
    layers = reply["isolation"]["layers"] if reply["success"] else {}
    end, hurried = reply, False
    if reply["success"]:
        end = client.wait(name, timeout=DEADLINE)
        hurried = not end["success"]
        if hurried:
            client.kill(name, grace=0)
    elif shot.isolation == "strict" and reply.get("code") == "isolation_unavailable":
        return Ended("", "", unavailable=reply["error"]), {}
    elif reply.get("exit_code") is None and reply.get("signal") is None:
        return Ended("", "", problem=reply["error"]), {}
    lines = client.logs(name, tail=2000)["lines"]
    said = [line["text"] for line in lines if line["text"].startswith("{")]
    noise = [line["text"] for line in lines if not line["text"].startswith("{")]
    how = f"killed after {DEADLINE:g} s" if hurried else end.get("reason") or end["error"]
    return Ended("\n".join(said), "; ".join((how, *noise)), killed=not hurried and end.get("signal") == 9), layers
