"""``agentos run``: runs a kernel in the foreground."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import click

from agentos.userland.cli.common import Failed, default_config, print_error, without_collections
from agentos.userland.cli.main import CONFIG
from agentos.userland.directories import state_home
from agentos_sdk import ConnectionFailed
from agentos_sdk.project import check_owners, default_project_socket, find_project, project_id

if TYPE_CHECKING:
    from agentos.boot.programs import Program
    from agentos.config.load import Config, ConfigMistake
    from agentos.userland.cli.console import Console

CassetteMode = Literal["replay", "record", "extend", "prune"]
STATE_DIR = (
    "What must survive the kernel: database, audit log, kept workspaces, agents' uids, the lock, the last run's id."
)
SHOW_LAST_RUN = "`agentos logs --last-run` shows the log of this run, with the last state of each agent"
F = TypeVar("F", bound=Callable[..., Any])


def state_dir_option(text: str = "As with `agentos run`.") -> Callable[[F], F]:
    """``--state-dir``, with its help."""
    return click.option("--state-dir", type=click.Path(path_type=Path), metavar="DIR", help=text)


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--socket", "socket", metavar="PATH", help="Where to listen.")
@state_dir_option(STATE_DIR)
@click.option("--watch", is_flag=True, help="Reload FILE when it is saved; restart an agent when its script is.")
@click.option("--dashboard", is_flag=True, help="Serve the dashboard and print its link, also without [dashboard].")
@click.option("--accept-lost-state", is_flag=True, help="Begin though agentos.db is missing, older or another one.")
@click.option("--cassette", metavar="FILE", type=click.Path(path_type=Path), help="Recorded answers of the model.")
@click.option(
    "--cassette-mode",
    type=click.Choice(get_args(CassetteMode)),
    default="replay",
    help="record asks the model and begins anew, extend asks what is missing; with CI set, always replay.",
)
@click.option("--record", multiple=True, metavar="AGENT", help="Record this agent, as `record = true`; repeatable.")
@click.option("--insecure-listen", is_flag=True, help="Allow it on another address than the loopback's, without TLS.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@click.option("--quiet", is_flag=True, help="Print only the kernel's own lines.")
@click.option("--show", multiple=True, metavar="NAME", help="Of agents, print only what this one writes; repeatable.")
def run(
    file: Path | None,
    socket: str | None,
    state_dir: Path | None,
    watch: bool,
    dashboard: bool,
    accept_lost_state: bool,
    cassette: Path | None,
    cassette_mode: CassetteMode,
    record: tuple[str, ...],
    insecure_listen: bool,
    as_json: bool,
    quiet: bool,
    show: tuple[str, ...],
) -> None:
    """Run a kernel with the tree that FILE describes.

    The default for FILE is ./agentos.toml if there is one. Ctrl-C stops the agents in order, a second one hurries. The
    exit status is 0 after a clean stop, and 1 when the root supervisor gave up or a required agent didn't come up.
    """
    with without_collections():
        from msgspec.structs import replace

        from agentos.boot.host import BootError
        from agentos.boot.kernel import Settings
        from agentos.boot.run import run as boot
        from agentos.userland.cli.approvals.notify import ServiceManager
        from agentos.userland.cli.console import Console

        from .display import RunDisplay

    manager = ServiceManager.from_environment(os.environ)
    named, file = file is not None, file or (CONFIG if default_config(CONFIG) else None)
    if quiet and show:
        raise click.UsageError("--quiet and --show exclude each other: --show prints no other agent's lines")
    if watch and file is None:
        raise Failed("--watch needs a configuration file: name one, or make one with `agentos init`")
    config = load_configuration(file, as_json, named)
    project = str(config.file or config.directory / CONFIG)
    path = socket or os.environ.get("AGENTOS_SOCKET") or config.kernel.socket or default_project_socket(project)
    state = state_dir or Path(config.kernel.state_dir or default_state_dir(project))
    with Console(config.kernel.log_level, as_json, show or ([] if quiet else None)) as console:
        display = RunDisplay(console, manager, path, has_file=file is not None).show
        programs = dashboard_programs(config, dashboard, insecure_listen, state, console)
        try:
            place = os.path.abspath(path), state.absolute()
            recorded, mode = choose_cassette(config, cassette, cassette_mode, console)
            llm = replace(config.llm, cassette=recorded, cassette_mode=mode)
            gave_up = boot(Settings(config, *place, display, watch, programs, accept_lost_state, llm, record))
        except BootError as error:
            raise Failed(str(error)) from None
        # Why it gave up the log has said.
        console.say("stopped" if gave_up is None else SHOW_LAST_RUN)
        manager.notify("STOPPING=1", f"STATUS={gave_up or 'stopped'}")
    sys.exit(0 if gave_up is None else 1)


def choose_cassette(
    config: "Config", file: Path | None, mode: CassetteMode, console: "Console"
) -> "tuple[str | None, CassetteMode]":
    """The recorded answers that are used, and what becomes of them. Raises ``click.UsageError``."""
    path = str(file.absolute()) if file is not None else config.llm.cassette
    if path is None and mode != "replay":
        raise click.UsageError("--cassette-mode needs --cassette FILE, or [llm] cassette in the configuration")
    if mode != "replay" and os.environ.get("CI", "") not in ("", "0", "false"):
        console.say(f"--cassette-mode {mode} is ignored: CI is set, so that answers come from the cassette alone")
        mode = "replay"
    return path, mode


def dashboard_programs(
    config: "Config", wanted: bool, insecure: bool, state_dir: Path, console: "Console"
) -> "list[Program]":
    """The dashboard, if ``--dashboard`` or the configuration asks for it. Raises ``Failed``."""
    from agentos.config.tables.dashboard import DashboardSettings

    settings = config.dashboard or (DashboardSettings() if wanted else None)
    if settings is None:
        return []
    from agentos.userland.web import serve  # 0.2 s

    options = serve.DashboardOptions(settings.host, settings.port, settings.allowed_hosts, insecure)
    try:
        listeners = serve.open_listeners(options)
    except serve.DashboardError as error:
        raise Failed(str(error)) from None
    on_terminal = sys.stdout.isatty()  # a journal or a log file would keep the link's token
    return [serve.Program(listeners, options, state_dir.absolute(), console.say, with_link=on_terminal)]


def load_configuration(file: Path | None, as_json: bool, named: bool) -> "Config":
    """The configuration in ``file``, or the defaults; prints its mistakes and ends with status 2.

    Unless it was ``named``, the file must not belong to another user. Its owner could replace it after a check by its
    path, so the check is about the file that was read.
    """
    from agentos.config.load import Config, ConfigError, load

    try:
        config = load(file) if file is not None else Config.without_file(Path.cwd())
        if not named:
            check_owners(str(config.file), config.owners)
        return config
    except ConnectionFailed as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(f"the current directory can't be used: {error.strerror}") from None
    except ConfigError as error:
        if as_json:
            click.echo(json.dumps({"success": False, "code": "bad_request", "error": str(error)}))
        else:
            print_mistakes(error.mistakes)
        raise SystemExit(2) from None


def print_mistakes(mistakes: "Iterable[ConfigMistake]") -> None:
    """Print a line for each: the file may be anyone's."""
    for mistake in mistakes:
        print_error(str(mistake))


def default_state_dir(file: str) -> Path:
    """The project's directory in /var/lib/agentos for root, else in agentos in $XDG_STATE_HOME or ~/.local/state."""
    if os.geteuid() == 0:
        return Path("/var/lib/agentos", project_id(file))
    return Path(state_home(), "agentos", project_id(file))


def find_state_dir() -> Path:
    """The state directory of the current directory's project: of its kernel if it runs, else what ``run`` would use."""
    try:
        project = find_project()
    except ConnectionFailed as error:
        raise Failed(str(error), {"code": "unavailable"}) from None
    return Path(project.state_dir or default_state_dir(project.file))
