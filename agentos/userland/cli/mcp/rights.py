"""What the commands of ``agentos mcp`` share: options, the state directory, and the rights of a client."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli.common import Failed, socket_path
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option

kernel_state_option = state_dir_option("The kernel's, as with `agentos run`.")
level_option = click.option(
    "--level", metavar="LEVEL|SET", help="The most that the client may do; default: standard. Not with --permissions."
)
permissions_option = click.option(
    "--permissions",
    "permissions_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A permission set of the client's own, in TOML or JSON.",
)


def find_place(given: Path | None) -> Path:
    """The state directory, absolute."""
    return Path(given).absolute() if given is not None else find_state_dir().absolute()


def find_kernel_socket(given: str | None, place: Path, is_chosen: bool) -> str:
    """The socket of the kernel with this state directory; ``is_chosen``: it is not the project's."""
    if given is None and is_chosen:
        from agentos_sdk.project import list_kernels

        found = [kernel.socket for kernel in list_kernels() if Path(kernel.state_dir) == place]
        if found:
            return found[0]
    return socket_path(given)


@contextlib.contextmanager
def entry_errors(place: Path) -> Iterator[None]:
    """Turn errors about entries into one line."""
    from agentos.private_files import describe_error
    from agentos.userland.mcp.clients import ClientError

    try:
        yield
    except ClientError as error:
        raise Failed(str(error)) from None
    except OSError as error:
        raise Failed(describe_error(error, place)) from None


def read_rights(level: str | None, file: Path | None) -> dict[str, Any]:
    """``level`` or ``permissions`` of an entry, checked: a mistake is said now, not when the client begins."""
    from agentos.userland.cli.permissions.permissions import check_level, read_set_file

    if file is None:
        level = level or "standard"
        check_level(level)
        return {"level": level}
    if level is not None:
        raise click.UsageError("--permissions says it already: leave --level out")
    return {"permissions": read_set_file(file)}
