"""``agentos kernels``: lists the kernels of this user that run."""

import shutil
import sys
from datetime import datetime

import click

from agentos_sdk import ConnectionFailed
from agentos_sdk.project import list_kernels, runtime_directory

from .common import Failed, fit_columns, format_table, json_option, print_json, printable

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
        click.echo(f"no kernel has a record in {printable(runtime_directory())}: start one with `agentos run`")
        return
    rows = [
        [
            kernel.name,
            str(kernel.pid),
            datetime.fromtimestamp(kernel.since).strftime("%Y-%m-%d %H:%M:%S"),
            printable(kernel.file or "-"),
            printable(kernel.socket),
        ]
        for kernel in running
    ]
    header = HEADER
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        header, *rows = fit_columns(rows, HEADER, HEADER[-2:], width)
    for line in format_table(rows, header):
        click.echo(line)
