"""``agentos run``: runs a kernel in the foreground."""

import gc
import json
import os
import sys
from pathlib import Path

import click

from agentos_sdk import ConnectionFailed
from agentos_sdk.project import default_project_socket, find_project, project_id

from .common import Failed
from .main import CONFIG

STATE_DIR = (
    "What must survive the kernel: database, audit log, kept workspaces, agents' uids, the lock, the last run's id."
)

MAX_MISSING = 10  # names of agents that aren't up yet, in one line


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--socket", "socket", metavar="PATH", help="Where to listen.")
@click.option("--state-dir", metavar="DIR", type=click.Path(path_type=Path), help=STATE_DIR)
@click.option("--watch", is_flag=True, help="Reload FILE when it is saved; restart agents whose script is.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
def run(file: Path | None, socket: str | None, state_dir: Path | None, watch: bool, as_json: bool) -> None:
    """Run a kernel with the tree that FILE describes.

    The default for FILE is ./agentos.toml if there is one. Ctrl-C stops the agents in order, a second one hurries. The
    exit status is 0 after a clean stop, and 1 when the root supervisor gave up or a required agent didn't come up.
    """
    gc.disable()  # modules are loaded a sixth faster: nearly all that they make stays
    import trio

    from agentos.boot import Settings
    from agentos.boot import run as boot
    from agentos.config.load import Config, ConfigError, load
    from agentos.host_setup import BootError
    from agentos.services.events import (
        AgentOutput,
        Event,
        IsolationProbed,
        KernelInterrupted,
        KernelStarted,
        KernelStopping,
    )

    from .console import Console
    from .notify import ServiceManager

    gc.collect()  # 12 ms for 2 MiB
    gc.freeze()  # no later collection goes through what was imported
    gc.enable()
    manager = ServiceManager.from_environment(os.environ)
    if file is None and CONFIG.exists():
        file = CONFIG
    if watch and file is None:
        raise Failed("--watch needs a configuration file: name one, or make one with `agentos init`")
    try:
        config = load(file) if file is not None else Config.without_file(Path.cwd())
    except OSError as error:
        raise Failed(f"the current directory can't be used: {error.strerror}") from None
    except ConfigError as error:
        mistakes = {"success": False, "code": "bad_request", "error": str(error)}
        click.echo(json.dumps(mistakes) if as_json else str(error), err=not as_json)
        raise SystemExit(2) from None
    project = str(config.file or config.directory / CONFIG)
    path = socket or os.environ.get("AGENTOS_SOCKET") or config.kernel.socket or default_project_socket(project)
    state = state_dir or Path(config.kernel.state_dir or default_state_dir(project))
    with Console(config.kernel.log_level) as console:
        console.as_json = as_json

        def show(event: Event) -> None:
            match event:
                case AgentOutput(name=name, stream=stream, text=text):
                    console.show(name, stream, text)
                case KernelStarted(model, missing, default_budget):
                    console.say(f"ready, listening on {path} (pid {os.getpid()})")
                    if missing:
                        more = f" and {len(missing) - MAX_MISSING} more" if len(missing) > MAX_MISSING else ""
                        console.say(f"not up yet: {', '.join(missing[:MAX_MISSING])}{more}")
                    if model is not None:
                        console.say(model)
                    if default_budget is not None:
                        console.say(default_budget)
                    if file is None:
                        console.say("there is no agentos.toml here, so no agent yet: start some with `agentos spawn`")
                case IsolationProbed(isolation):
                    console.say(f"isolation {isolation}")
                    trio.lowlevel.spawn_system_task(manager.keep_notified, f"ready; isolation {isolation}")
                case KernelInterrupted():
                    console.end_echo()
                case KernelStopping():
                    manager.notify("STOPPING=1", "STATUS=stopping, agents first")

        try:
            gave_up = boot(Settings(config, os.path.abspath(path), state.absolute(), show, watch))
        except BootError as error:
            raise Failed(str(error)) from None
        result = "stopped" if gave_up is None else gave_up
        if gave_up is None:
            console.say(result)
        else:  # the log has said why
            console.say("`agentos logs --last-run` shows the log of this run, with the last state of each agent")
        manager.notify("STOPPING=1", f"STATUS={result}")
    sys.exit(0 if gave_up is None else 1)


def default_state_dir(file: str) -> Path:
    """The project's directory in /var/lib/agentos for root, else in agentos in $XDG_STATE_HOME or ~/.local/state."""
    if os.geteuid() == 0:
        return Path("/var/lib/agentos", project_id(file))
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "agentos", project_id(file))


def find_state_dir() -> Path:
    """The state directory of the current directory's project: of its kernel if it runs, else what ``run`` would use."""
    try:
        project = find_project()
    except ConnectionFailed as error:
        raise Failed(str(error), {"code": "unavailable"}) from None
    return Path(project.state_dir or default_state_dir(project.file))
