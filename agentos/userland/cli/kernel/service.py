"""``agentos service install``: writes a systemd unit that runs the kernel of a configuration file."""

import difflib
import math
import os
import pwd
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from agentos.userland.cli.common import Failed, check_default
from agentos.userland.cli.main import CONFIG
from agentos.userland.directories import config_home
from agentos.userland.whole_files import replacing

from .run import load_configuration

STOP_MARGIN = 15  # seconds from the kernel's own stop_timeout until systemd kills it
SYSTEM_UNITS = Path("/etc/systemd/system")
PLAIN_WORD = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
UNIT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
# What the lines are for: docs/how-to/run-under-systemd.md.
SYSTEM_UNIT = """\
[Unit]
Description=AgentOS kernel
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
{user}Delegate=yes
RuntimeDirectory={name}
StateDirectory={name}
ExecStart={agentos} run {file} --socket /run/{name}/agentos.sock --state-dir /var/lib/{name}
ExecReload={agentos} reload --socket /run/{name}/agentos.sock
Restart=on-failure
RestartSec=5s
WatchdogSec=30s
KillMode=mixed
TimeoutStopSec={stop}s

[Install]
WantedBy=multi-user.target
"""
USER_UNIT = """\
[Unit]
Description=AgentOS kernel

[Service]
Type=notify
Delegate=yes
ExecStart={agentos} run {file}
Restart=on-failure
RestartSec=5s
WatchdogSec=30s
KillMode=mixed
TimeoutStopSec={stop}s

[Install]
WantedBy=default.target
"""


@click.group()
def service() -> None:
    """Run a kernel as a systemd service."""


@service.command()
@click.argument("file", default=CONFIG, type=click.Path(path_type=Path))
@click.option("--user", "own", is_flag=True, help="A service of your own, which takes no root.")
@click.option("--run-as", metavar="USER", help="The user of a system service; default: root.")
@click.option("--name", default="agentos", show_default=True, help="Of the unit; each kernel needs one of its own.")
@click.option("--replace", is_flag=True, help="Replace a unit of that name that differs.")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install(file: Path, own: bool, run_as: str | None, name: str, replace: bool, only_print: bool) -> None:
    """Write a unit that runs the kernel of FILE.

    FILE is ./agentos.toml by default. The unit is shown with the commands that start it, none of which is run here.
    """
    if own and run_as is not None:
        raise click.UsageError("--run-as: expected without --user, whose service runs as you")
    if not UNIT_NAME.fullmatch(name):
        raise Failed(f"--name: expected lower-case letters, digits, - and _, got {name!r}")
    check_user(run_as)
    check_default(file)
    config = load_configuration(file, as_json=False, named=True)  # ends this command if FILE is wrong
    stop = math.ceil(config.kernel.stop_timeout) + STOP_MARGIN
    text = write_unit(find_agentos(), str(file.absolute()), own, run_as, name, stop)
    if only_print:
        click.echo(text, nl=False)
        return
    if not own and os.geteuid() != 0:
        raise Failed("a system service is installed by root; `agentos service install --user` installs one of your own")
    path = unit_directory(own) / f"{name}.service"
    save_unit(path, text, replace)
    click.echo(f"{path}:\n")
    click.echo("".join(f"  {line}" for line in text.splitlines(keepends=True)))
    click.echo("Start it now and at each boot:")
    for command in next_commands(own, name):
        click.echo(f"  {command}")


def check_user(name: str | None) -> None:
    """Raises ``Failed`` if there is no such user."""
    try:
        if name is not None:
            pwd.getpwnam(name)
    except KeyError:
        raise Failed(f"--run-as: there is no user {name}: `useradd --system {name}` makes one") from None


def find_agentos() -> list[str]:
    """The command `agentos` of this environment, with its whole path; it imports nothing from the working directory."""
    beside = Path(sys.executable).with_name("agentos")
    return [str(beside)] if beside.exists() else [sys.executable, "-P", "-m", "agentos"]


def write_unit(command: Sequence[str], file: str, own: bool, run_as: str | None, name: str, stop: int) -> str:
    """The text of the unit, in which systemd waits ``stop`` seconds for the kernel's end.

    Raises ``Failed`` if a path can't be written in one.
    """
    agentos = " ".join(map(quote, command))
    if own:
        return USER_UNIT.format(agentos=agentos, file=quote(file), stop=stop)
    user = f"User={run_as}\n" if run_as is not None else ""
    return SYSTEM_UNIT.format(agentos=agentos, file=quote(file), user=user, name=name, stop=stop)


def quote(word: str) -> str:
    """A word of a command as ExecStart= reads it (systemd.service(5), "Command lines")."""
    if PLAIN_WORD.fullmatch(word):
        return word
    if not word.isprintable():
        raise Failed(f"{word!r} has characters that a unit can't have")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def unit_directory(own: bool) -> Path:
    """Where systemd looks for units of the system, or of this user."""
    if not own:
        return SYSTEM_UNITS
    return Path(config_home(), "systemd", "user")


def save_unit(path: Path, text: str, replace: bool) -> None:
    """Write the unit in one step; raises ``Failed`` with the difference if there is another one."""
    try:
        former = path.read_text() if path.exists() else None
        if former not in (None, text) and not replace:
            assert former is not None
            lines = difflib.unified_diff(former.splitlines(), text.splitlines(), "present", "new", lineterm="", n=0)
            shown = "\n".join(lines)
            raise Failed(f"{path} exists and differs; --replace replaces it, --name makes another one:\n{shown}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
            os.fchmod(file.fileno(), 0o644)
    except OSError as error:
        raise Failed(f"{error.filename or path}: {error.strerror}") from None


def next_commands(own: bool, name: str) -> list[str]:
    systemctl = "systemctl --user" if own else "systemctl"
    commands = [f"{systemctl} daemon-reload", f"{systemctl} enable --now {name}", f"{systemctl} status {name}"]
    return [*commands, "loginctl enable-linger  # it goes on when you log out"] if own else commands
