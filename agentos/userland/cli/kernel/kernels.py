"""``agentos kernels``: lists the kernels of this user that run."""

import shutil
import sys
from collections.abc import Iterator

import click

from agentos.userland.cli.columns import format_table
from agentos.userland.cli.common import Failed, json_option, print_json, printable
from agentos.userland.cli.times import format_time
from agentos_sdk import ConnectionFailed
from agentos_sdk.project import RunningKernel, list_kernels, runtime_directory

HEADER = ["NAME", "PID", "SINCE", "CONFIGURATION", "SOCKET"]


@click.command()
@json_option
def kernels(as_json: bool) -> None:
    """List the kernels of this user that run.

    A kernel that was killed isn't listed, nor is one that has another runtime directory (XDG_RUNTIME_DIR).
    """
    try:
        running = list_kernels()
    except ConnectionFailed as error:
        raise Failed(str(error), {"code": "unavailable"}) from None
    if as_json:
        print_json([kernel._asdict() for kernel in running])
        return
    if not running:
        looked_in = printable(runtime_directory())
        click.echo(f"no kernel of yours runs (looked in {looked_in}): start one with `agentos run`")
        return
    for line in kernel_lines(running):
        click.echo(line)


def kernel_lines(running: list[RunningKernel]) -> Iterator[str]:
    """A table. In a terminal that is too narrow, file and socket have lines of their own: no path is cut."""
    rows = [
        [
            kernel.name,
            str(kernel.pid),
            format_time(kernel.since),
            printable(kernel.file or "-"),
            printable(kernel.socket),
        ]
        for kernel in running
    ]
    lines = list(format_table(rows, HEADER))
    if not sys.stdout.isatty() or max(map(len, lines)) <= shutil.get_terminal_size().columns:
        yield from lines
        return
    header, *short = format_table([row[:3] for row in rows], HEADER[:3])
    yield header
    for line, row in zip(short, rows, strict=True):
        yield from (line, f"  {row[3]}", f"  {row[4]}")
