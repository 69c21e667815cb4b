"""``agentos spawn``: starts an agent; with --wait shows its output and ends with its exit status."""

import os
import signal
import sys
from typing import Any, get_args

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    kernel,
    kernel_options,
    parse_number,
    parse_permission_set,
    print_result,
    printable,
    project_directory,
)
from agentos.userland.cli.output_text import printable_output, shows_colours
from agentos_sdk import AgentOSClient
from agentos_sdk.clients.suggestions import suggest_name
from agentos_sdk.encoding.quantities import size
from agentos_sdk.values import LLMClass

LIMITS = ("memory", "max_pids", "cpu_quota", "cpu_weight", "open_files", "file_size", "disk", "inodes", "tmp")
BUDGETS = ("tokens", "calls", "money")


class SpawnCommand(click.Command):
    """A command with its own options before SCRIPT or ``--``; all further words belong to the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {
            name: isinstance(option, click.Option) and not option.is_flag
            for option in self.get_params(ctx)
            for name in option.opts
        }
        ours: list[str] = []
        names: list[str] = []
        rest = list(args)
        while rest and len(names) < 2 and rest[0] != "--":
            word = rest.pop(0)
            if not word.startswith("-"):
                names.append(word)
                continue
            ours.append(word)
            if takes_value.get(word) and rest:
                ours.append(rest.pop(0))
        ctx.meta["command"] = rest[:1] == ["--"] and len(names) < 2
        ctx.meta["named"] = bool(names)
        if rest[:1] == ["--"]:
            rest.pop(0)
        return super().parse_args(ctx, [*ours, "--", *names, *rest])


@click.command(cls=SpawnCommand)
@click.argument("name")
@click.argument(
    "program",
    nargs=-1,
    required=True,
    metavar="{SCRIPT [ARGS]... | -- COMMAND [ARGS]...}",
    shell_complete=completed.files,
)
@click.option("--wait", is_flag=True, help="Show its output and end with its exit status; Ctrl-C stops it.")
@click.option("--restart", type=click.Choice(["permanent", "transient", "temporary"]), help="Default: temporary.")
@click.option("--ready", type=click.Choice(["hello"]), help="Wait until it has said HELLO.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of its environment; repeatable.")
@click.option("--cwd", metavar="DIR", help="Its working directory, inside; default: /workspace. Not jailed: this one.")
@click.option("--python", metavar="PATH", help="The interpreter for SCRIPT; default: the kernel's.")
@click.option("--framework", metavar="NAME", help="Whose program it is: its variables and memory, by a preset.")
@click.option("--code", metavar="DIR", help="A directory with SCRIPT in it: it sees all of that, as /agent.")
@click.option("--workspace", metavar="tmp|keep|DIR", help="Its /workspace: in memory (default), kept by name, or DIR.")
@click.option("--network", is_flag=True, help="Let it use the host's network; default: loopback alone.")
@click.option("--filtered", is_flag=True, help="Let it reach what its rules allow, by the kernel's proxy.")
@click.option(
    *("--limit", "limit"),
    multiple=True,
    metavar="NAME=VALUE",
    help=f"Such as memory=256M or cpu_quota=10%; repeatable. NAME is one of {', '.join(LIMITS)}.",
)
@click.option(
    "--isolation",
    type=click.Choice(["standard", "best_effort", "strict", "none"]),
    help="Default: standard, which best_effort is another word for. none: no jail.",
)
@click.option(
    *("--budget", "budget"),
    multiple=True,
    metavar="AMOUNT/TIME",
    help="Of the model, for it and all that it spawns, such as tokens=5000/1h, calls=9/1m, money=0.5/1d; repeatable.",
)
@click.option("--weight", type=float, metavar="NUMBER", help="Its share of the model beside others. Default: 1.")
@click.option("--class", "class_", type=click.Choice(get_args(LLMClass)), help="Of its questions. Default: normal.")
@click.option(
    *("--permissions", "permissions"),
    metavar="LEVEL|SET|JSON|FILE.json|-",
    help="What it may do: by a name, or in JSON; -: from our input. Default: sandboxed; without a jail: standard.",
)
@click.option("--runtime", type=click.Choice(["exec", "fast"]), help="fast: SCRIPT without an exec. Default: exec.")
@click.option("--image", metavar="NAME", help="The image whose files it has in place of this host's system.")
@click.option("--user", type=click.Choice(["root"]), help="Its programs are root of the image, and not of this host.")
@click.option("--terminals", is_flag=True, help="Its programs may open pseudo-terminals, as tmux does.")
@click.option("--mailbox", type=click.Choice(["kept", "memory"]), help="kept: its unread messages outlive it.")
@kernel_options
@click.pass_context
def spawn(
    ctx: click.Context,
    /,
    name: str,
    program: tuple[str, ...],
    wait: bool,
    as_json: bool,
    socket_path: str | None,
    env: tuple[str, ...],
    limit: tuple[str, ...],
    budget: tuple[str, ...],
    weight: float | None,
    class_: str | None,
    permissions: str | None,
    network: bool,
    filtered: bool,
    framework: str | None,
    **more: Any,
) -> None:
    """Start an agent called NAME: a Python SCRIPT, or any COMMAND."""
    fields: dict[str, Any] = {"name": name, "env": parse_pairs("--env", env), "limits": parse_limits(limit), **more}
    if network and filtered:
        raise click.UsageError("--network and --filtered: it has either the host's network or a filtered one")
    fields["network"] = "filtered" if filtered else network
    share = {"weight": weight, "class": class_, "budget": [parse_budget(given) for given in budget] or None}
    fields["llm"] = {name: value for name, value in share.items() if value is not None} or None
    fields["permissions"] = parse_permission_set(permissions) if permissions is not None else None
    if ctx.meta["command"]:
        fields["command"] = program
    else:
        fields |= {"script": program[0], "args": program[1:]}
    with kernel(socket_path) as client:
        if framework is not None:
            add_preset(client, framework, fields)
        if wait:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.default_int_handler)  # these signals stop the agent, too
            sys.exit(spawn_and_wait(client, fields))
        reply = client.spawn(**fields)
        if is_done(reply, fields):
            print_result(f"{name} has ended already: exit status 0", reply, as_json)
            return
        check_started(reply, fields)
        print_result(f"{name} is {reply['status']} (id {reply['id']}, pid {reply['pid']})", reply, as_json)


def add_preset(client: AgentOSClient, name: str, fields: dict[str, Any]) -> None:
    """Add what the preset of a program sets; what is given wins. Raises ``click.UsageError``."""
    from agentos.presets import BadPreset, check_place, read_preset, user_directories

    directories, workspace = user_directories(project_directory()), fields["workspace"]
    try:
        check_place(name, directories, [] if workspace in (None, "tmp", "keep") else [workspace])
        preset = read_preset(name, directories)
    except BadPreset as error:
        raise click.UsageError(f"--framework: {error}") from None
    state = client.status()["model"] if preset.needs_model else None
    model = state["model"] if state is not None else ""
    limits = {"memory": preset.memory, **fields["limits"]}
    env = preset.environment(model, size(limits["memory"]))
    fields |= {"env": {**env, **fields["env"]}, "limits": limits}
    fields["terminals"] = fields["terminals"] or (preset.terminals and fields["isolation"] != "none")
    if fields.get("command") or preset.files:
        try:
            fields["command"] = preset.command(fields.get("command") or (), model)
        except BadPreset as error:
            raise click.UsageError(f"--framework {name}: {error}") from None


def spawn_and_wait(client: AgentOSClient, fields: dict[str, Any]) -> int:
    """Start an agent, show its output until it has ended, and return its exit status."""
    try:
        reply = client.spawn(**fields)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # closing our connection cancels the start, too
    if reply["success"]:
        return follow_output(client, fields["name"], reply["id"])
    if reply.get("exit_code") is None and reply.get("signal") is None:
        check_started(reply, fields)
    print_page(client.logs(fields["name"], tail=2000))  # it ended before it counted as started, as a short job may
    print_limit_notice(fields["name"], client.wait(fields["name"]))
    return exit_status(reply)


def is_done(reply: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether it was a short job that ended successfully before it counted as started."""
    waited_for = fields["ready"] is not None or fields["restart"] == "permanent"
    return not reply["success"] and reply.get("exit_code") == 0 and not waited_for


def check_started(reply: dict[str, Any], fields: dict[str, Any]) -> None:
    """Fail if SPAWN failed, with a hint if a command was given as a script."""
    script = fields.get("script")
    if reply.get("code") == "not_found" and script is not None and not os.path.exists(script):
        raise Failed(
            f"{reply['error']}; for a command write -- before it: agentos spawn {fields['name']} -- {script} ...",
            reply,
        )
    check_reply(reply)


def follow_output(client: AgentOSClient, name: str, number: int) -> int:
    """Show an agent's output until it has ended, and return its exit status."""
    try:
        for page in client.follow_logs(agent_id=number, run=0, since=0):  # from the log on disk, which has all of it
            print_page(page)
    except KeyboardInterrupt:
        try:
            client.kill(agent_id=number)
        except KeyboardInterrupt:
            client.disconnect()
            client.kill(agent_id=number, grace=0)
        return 128 + signal.SIGINT
    end = check_reply(client.wait(agent_id=number))
    print_limit_notice(name, end)
    return exit_status(end)


def print_limit_notice(name: str, end: dict[str, Any]) -> None:
    """Print what the exit status doesn't tell: that a limit killed the agent, or was reached."""
    reason = end.get("reason", "")
    if reason.startswith("killed:") or ";" in reason:  # limits come after the status
        click.echo(f"agentos: {name}: {printable(reason)}", err=True)


def exit_status(end: dict[str, Any]) -> int:
    """An exit status as in shells: 128 + the signal if it was killed."""
    if end["signal"] is not None:
        return 128 + int(end["signal"])
    return int(end["exit_code"]) if end["exit_code"] is not None else 127


def print_page(page: dict[str, Any]) -> None:
    if page["missed"]:
        click.echo(f"({page['missed']} older lines are no longer kept)", err=True)
    for line in page["lines"]:
        if line["stream"] != "kernel":
            click.echo(printable_output(line["text"], shows_colours()), err=line["stream"] == "stderr")


def parse_pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    for item in given:
        if "=" not in item:
            raise Failed(f"{option} {item}: expected NAME=VALUE")
    return dict(item.split("=", 1) for item in given)


def parse_limits(given: tuple[str, ...]) -> dict[str, object]:
    """The limits in the form of SPAWN: plain digits become a number; the kernel checks the values."""
    named = parse_pairs("--limit", given)
    for name in named:
        if name not in LIMITS:
            hint = suggest_name(name, LIMITS) or f", expected one of {', '.join(LIMITS)}"
            raise Failed(f"--limit {name}: no such limit{hint}")
    return {name: parse_number(value) if value.isdecimal() else value for name, value in named.items()}


def parse_budget(given: str) -> dict[str, object]:
    """Parse one line of a budget: ``tokens=5000/1h``."""
    what, _, rest = given.partition("=")
    amount, slash, per = rest.partition("/")
    try:
        number = float(amount) if what == "money" else int(amount)
    except ValueError:
        number = None
    if what not in BUDGETS or number is None or not slash:
        raise Failed(f"--budget {given}: expected tokens, calls or money, such as tokens=5000/1h")
    return {what: number, "per": per}
