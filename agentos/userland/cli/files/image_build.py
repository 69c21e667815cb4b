"""``agentos image build`` and ``pull``: images of a Dockerfile, whose RUNs are agents, and of a registry."""

import contextlib
import errno
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentos.userland.cli.agents.resources import format_bytes
from agentos.userland.cli.agents.spawn import parse_limits, parse_pairs, spawn_and_wait
from agentos.userland.cli.common import Failed, Seconds, json_option, kernel, kernel_options, print_result, printable
from agentos.userland.cli.kernel.run import find_state_dir, state_dir_option
from agentos_sdk import AgentOSClient, AgentOSError

if TYPE_CHECKING:
    from agentos.images.building.dockerfile import Instruction
    from agentos.images.building.plan import Run
    from agentos.images.store import Image

LIMITS = ("memory=2G", "max_pids=512", "disk=10G", "inodes=1000000", "file_size=4G", "open_files=4096")  # of RUN
SECONDS, MAX_RUN = 3600.0, 7 * 86400.0  # of one RUN
MEMORY = 1 << 30  # bytes that this process may take: archives and Dockerfiles may be hostile


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@click.option("-t", "--tag", "name", required=True, metavar="NAME", help="The name of the image.")
@click.option("-f", "--file", "file", metavar="FILE", help="The Dockerfile; default: DIR/Dockerfile.")
@click.option("--build-arg", "arguments", multiple=True, metavar="NAME=VALUE", help="The value of an ARG; repeatable.")
@click.option("--target", default="", metavar="STAGE", help="Build this stage; default: the last one.")
@click.option("--no-cache", is_flag=True, help="Run each RUN, also if it was done before.")
@click.option("--no-root", is_flag=True, help="RUN as one user that owns all files, not as root of the image.")
@click.option("--network", is_flag=True, help="Let RUN use the host's network; default: none.")
@click.option("--domain", "domains", multiple=True, metavar="DOMAIN", help="Let RUN reach it, by the kernel's proxy.")
@click.option("--limit", "limit", multiple=True, metavar="NAME=VALUE", help="Of RUN, such as memory=4G; repeatable.")
@click.option("--timeout", type=Seconds(1, MAX_RUN), default=SECONDS, metavar="SECONDS", help="Of one RUN.")
@state_dir_option()
@kernel_options
def build(
    directory: str,
    name: str,
    file: str | None,
    arguments: tuple[str, ...],
    target: str,
    no_cache: bool,
    no_root: bool,
    network: bool,
    domains: tuple[str, ...],
    limit: tuple[str, ...],
    timeout: float,
    state_dir: Path | None,
    as_json: bool,
    socket_path: str | None,
) -> None:
    """Make an image of the Dockerfile in DIR.

    FROM takes images that were imported. Each RUN is an agent of the running kernel, in a jail of its own.
    """
    from agentos.images.building.build import Build, Options
    from agentos.images.building.dockerfile import parse, read_text
    from agentos.images.store import Images

    if network and domains:
        raise click.UsageError("--network and --domain: it has either the host's network or a filtered one")
    reached = ("host",) if network else tuple(sorted(domains))
    options = Options(parse_pairs("--build-arg", arguments), target, reached, not no_root, not no_cache)
    fields = {
        "limits": {**parse_limits(LIMITS), **parse_limits(limit)},
        "network": "host" if network else "filtered" if domains else "none",
        "permissions": {"level": "minimal", **({"allow": {"domains": list(domains)}} if domains else {})},
        "restart": "temporary",
        "ready": None,
    }

    def tell(one: "Instruction", cached: bool) -> None:
        click.echo(printable(f"{one.line}: {one.shown}{' (done before)' if cached else ''}"), err=True)

    def run(one: "Instruction", act: "Run", image: str) -> None:
        with kernel(socket_path) as client:
            run_step(client, one, act, {**fields, "name": image, "image": image}, timeout)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C they end the program of a RUN, too
    with making(name):
        text = read_text(directory, file)
        images = Images((state_dir or find_state_dir()).absolute())
        with contextlib.redirect_stdout(sys.stderr):  # what programs say isn't the command's answer
            made = Build(images, run, tell, options).build(parse(text), directory, name)
    describe_made(made, as_json)


def run_step(client: AgentOSClient, one: "Instruction", act: "Run", fields: Mapping[str, Any], seconds: float) -> None:
    """Run a program of RUN as an agent; it is ended after so many seconds. Raises ``BadDockerfile``."""
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(AgentOSError), AgentOSClient(client.socket_path) as other:
            other.kill(name=fields["name"], grace=0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        own = {"command": list(act.command), "env": dict(act.env), "cwd": act.directory}
        own |= {"user": "root"} if act.is_root else {}
        status = spawn_and_wait(client, {**fields, **own})
    except Failed as error:  # it wasn't started
        raise one.fail(error.message) from None
    finally:
        timer.cancel()
    if late.is_set():
        raise one.fail(f"it was ended after {seconds:g} s: see --timeout")
    if status != 0:
        raise one.fail(f"exit status {status}")


@click.command()
@click.argument("reference", metavar="REF")
@click.argument("name")
@state_dir_option()
@click.option("--insecure", is_flag=True, help="The registry has no TLS, or a certificate of its own.")
@json_option
def pull(reference: str, name: str, state_dir: Path | None, insecure: bool, as_json: bool) -> None:
    """Fetch an image from a registry by skopeo, and import it.

    REF is such as docker.io/library/python:3.12-slim, or what skopeo takes with a transport, such as oci:DIR:TAG.
    """
    from agentos.images.importer import import_image
    from agentos.images.store import Images

    if reference.startswith("-"):
        raise click.UsageError(f"REF: expected a reference such as docker.io/library/debian:13, got {reference!r}")
    program = shutil.which("skopeo")
    if program is None:
        raise Failed("pull needs skopeo, which isn't in PATH: install its package (`apt-get install skopeo`)")
    transports = ("docker://", "oci:", "oci-archive:", "docker-archive:", "dir:")
    source = reference if reference.startswith(transports) else f"docker://{reference}"
    with tempfile.TemporaryDirectory(prefix="agentos-pull-") as place:
        words = ["--src-tls-verify=false"] if insecure else []
        command = [program, "copy", "--quiet", "--insecure-policy", *words, "--", source, f"oci:{place}/image:pulled"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise Failed(f"{name} wasn't made: skopeo: {printable(last)}")
        with making(name):
            made = import_image(Images((state_dir or find_state_dir()).absolute()), f"{place}/image", name)
    describe_made(made, as_json)


def describe_made(made: "Image", as_json: bool) -> None:
    """Tell what was made, and what isn't taken of it."""
    for sentence in made.left_out if not as_json else ():
        click.echo(printable(sentence), err=True)
    size = f"{made.entries} entries, {format_bytes(made.bytes)}"
    reply = {"name": made.name, "digest": made.digest, "bytes": made.bytes, "left_out": made.left_out}
    print_result(f"{made.name} is made of the {made.format}: {size}, {made.digest}", reply, as_json)


@contextlib.contextmanager
def making(name: str) -> Iterator[None]:
    """Tell what goes wrong in one line, and have this process take at most :data:`MEMORY` meanwhile."""
    from agentos.images.building.dockerfile import BadDockerfile
    from agentos.images.errors import BadArchive, BadStore, NoImage

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    amount = min(limit for limit in (soft, MEMORY) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (amount, hard))
    try:
        yield
    except (BadArchive, BadStore, BadDockerfile, NoImage) as error:
        raise Failed(f"{name} wasn't made: {error}") from None
    except (OSError, MemoryError) as error:
        text = f"its names need more than {amount >> 20} MiB of memory"
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            text = f"{error.filename or 'its files'}: {error.strerror}"
        raise Failed(f"{name} wasn't made: {text}") from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
