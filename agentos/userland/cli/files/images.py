"""``agentos image``: images that agents run in."""

import sys
from pathlib import Path
from typing import Any

import click

from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.common import (
    Failed,
    check_reply,
    json_option,
    kernel,
    kernel_options,
    print_lines,
    print_result,
    print_table,
)
from agentos.userland.cli.files.image_build import build, describe_made, making, pull
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option
from agentos.userland.cli.times import format_time

HEADER = ["IMAGE", "DIGEST", "LAYERS", "SIZE", "MADE"]


@click.group()
def image() -> None:
    """Make, list and remove images that agents run in."""


image.add_command(build)
image.add_command(pull)


@image.command("import")
@click.argument("source", metavar="FILE|DIR|-")
@click.argument("name")
@state_dir_option()
@click.option("--max-size", type=click.IntRange(1), default=20 << 30, metavar="BYTES",
              help="What all its files may have; 20 GiB without it.")  # fmt: skip
@json_option
def import_(source: str, name: str, state_dir: Path | None, max_size: int, as_json: bool) -> None:
    """Make an image of an archive.

    It is an OCI layout, what `docker save` writes, or a tar with the files of a root: a file, for an OCI layout also a
    directory, or - for standard input. No kernel has to run. An image of this name is replaced; agents that run in it
    keep it until they end.
    """
    from agentos.images.importer import import_image
    from agentos.images.store import Images
    from agentos.images.unpack import Bounds

    images = Images((state_dir or find_state_dir()).absolute())
    with making(name):
        made = import_image(images, sys.stdin.buffer if source == "-" else source, name, Bounds(size=max_size))
    describe_made(made, as_json)


@image.command()
@kernel_options
def ls(socket_path: str | None, as_json: bool) -> None:
    """List the images."""
    with kernel(socket_path) as client:
        reply = check_reply(client.images())
    rows = [
        [i["name"], i["digest"][:19], str(i["image_layers"]), format_bytes(i["bytes"]), format_time(i["made"])]
        for i in reply["images"]
    ]
    print_table(rows, HEADER, ("IMAGE", "DIGEST"), "no images", reply, as_json)


@image.command()
@click.argument("name")
@kernel_options
def inspect(name: str, socket_path: str | None, as_json: bool) -> None:
    """Show what an agent takes of an image, and what it doesn't."""
    with kernel(socket_path) as client:
        reply = check_reply(client.images())
    found = next((one for one in reply["images"] if one["name"] == name), None)
    if found is None:
        raise Failed(f"there is no image {name!r}: `agentos image ls` lists them")
    print_lines(describe(found), found, as_json)


def describe(one: dict[str, Any]) -> list[str]:
    config = one["config"]
    rows = {
        "image": one["name"],
        "digest": one["digest"],
        "made of": f"{one['format']}, {format_time(one['made'])}",
        "size": f"{format_bytes(one['bytes'])}, layers: {one['image_layers']}",
        "command": " ".join(config["cmd"]) or "none",
        "directory": config["working_dir"] or "/workspace",
        "user": config["user"] or "agent",
    }
    lines = [f"{key:<10} {value}" for key, value in rows.items()]
    lines += [f"variable   {key}={value}" for key, value in config["env"].items()]
    return [*lines, *(f"not taken  {sentence}" for sentence in one["left_out"])]


@image.command()
@click.argument("name")
@kernel_options
def rm(name: str, socket_path: str | None, as_json: bool) -> None:
    """Remove an image that no agent uses."""
    with kernel(socket_path) as client:
        reply = check_reply(client.images(remove=name))
    print_result(f"{name} is removed", reply, as_json)
