"""``agentos record``: records what agents ask the kernel and are answered, until it is told to stop."""

import click

from agentos.userland.cli import completed
from agentos.userland.cli.common import check_reply, kernel, kernel_options, plural, print_result
from agentos_sdk.encoding import codec
from agentos_sdk.encoding.codec import Size


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completed.agents)
@click.option("--max", "most", metavar="SIZE", help="End when the calls take so many bytes, as 1G.")
@click.option("--tree", is_flag=True, help="Also what these agents spawn, and what that spawns.")
@click.option("--stop", is_flag=True, help="End the recording that goes on.")
@kernel_options
def record(
    names: tuple[str, ...], most: str | None, tree: bool, stop: bool, socket_path: str | None, as_json: bool
) -> None:
    """Record what agents ask the kernel and are answered.

    Without NAME it records all callers, also you. A life that has begun already can be read later, but not replayed:
    `record = true` of an agent, and `agentos run --record NAME`, record lives from their first call on.
    """
    if stop and (names or most or tree):
        raise click.UsageError("--stop ends the only recording that goes on: leave out NAME, --max and --tree")
    if tree and not names:
        raise click.UsageError("--tree: name the agents whose trees are recorded; without NAME all callers are")
    with kernel(socket_path) as client:
        if stop:
            reply = check_reply(client.record_stop())
            said = f"{reply['name']} has {plural(reply['entry_count'], 'call')}: {reply['path']}"
        else:
            reply = check_reply(client.record_start(list(names) or None, max_bytes=read_size(most), tree=tree))
            said = f"{reply['name']} is being recorded to {reply['path']}; `agentos record --stop` ends it"
    print_result(said, reply, as_json)


def read_size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return codec.decode(Size, text)
    except codec.Invalid as error:
        raise click.BadParameter(str(error), param_hint="--max") from None
