"""What an image says of the programs in it: what an agent takes of it, and what it doesn't."""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from .errors import BadArchive

MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64", "ppc64le": "ppc64le", "s390x": "s390x"}
_USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
MAX_VARIABLES = 1_000
_MAX_TEXT = 128 << 10  # bytes of one text, as Linux takes for an argument


class Given(Struct, rename="pascal"):
    """``config`` of an image, as OCI and Docker have it."""

    env: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None
    cmd: list[str] | None = None
    entrypoint: list[str] | None = None
    volumes: dict[str, object] | None = None
    healthcheck: object = None
    on_build: list[str] | None = None
    stop_signal: str | None = None


class RootFs(Struct):
    diff_ids: list[str] = []


class ImageFile(Struct):
    """The file that an image's manifest names as its configuration."""

    architecture: str = ""
    os: str = ""
    config: Given | None = None
    rootfs: RootFs = field(default_factory=RootFs)


class ImageConfig(Struct, frozen=True):
    """What an agent takes of an image: its environment, working directory, the name of its user, and its command.

    ``working_dir`` and ``user`` are empty where it says none, and ``cmd`` is empty where no command can be taken.
    ``entrypoint`` is only told.
    """

    env: Mapping[str, str] = {}
    working_dir: str = ""
    user: str = ""
    cmd: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()


def take_config(given: Given | None) -> tuple[ImageConfig, Sequence[str]]:
    """What is taken of an image's configuration, and sentences about what isn't. Raises :class:`BadArchive`."""
    if given is None:
        return ImageConfig(), ()
    env = dict(_read_variables(given.env or ()))
    if len(env) > MAX_VARIABLES:
        raise BadArchive(f"its configuration: Env: more than {MAX_VARIABLES} variables")
    entrypoint, cmd = given.entrypoint or [], given.cmd or []
    texts = (*entrypoint, *cmd, given.working_dir or "", given.user or "")
    if any("\0" in text or len(text) > _MAX_TEXT for text in texts):
        raise BadArchive("its configuration: a text of it has a NUL or is longer than Linux takes")
    directory = given.working_dir or ""
    if directory and (not directory.startswith("/") or ".." in directory.split("/")):
        raise BadArchive(f"its configuration: WorkingDir: expected an absolute path without .., got {directory!r}")
    user = (given.user or "").partition(":")[0]
    name = user if _USER_NAME.fullmatch(user) and user != "root" else ""
    return (
        ImageConfig(
            env,
            "/" + directory.strip("/") if directory else "",
            name,
            () if entrypoint else tuple(cmd),
            tuple(entrypoint),
        ),
        tuple(_describe_rest(given, user, name)),
    )


def _read_variables(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, is_set, value = line.partition("=")
        if not name or not is_set or "\0" in line or len(line) > _MAX_TEXT:
            raise BadArchive(f"its configuration: Env: expected NAME=VALUE, got {line[:100]!r}")
        if not name.startswith("AGENTOS_"):  # the kernel's
            yield name, value


def _describe_rest(given: Given, user: str, name: str) -> Iterator[str]:
    if given.entrypoint:
        yield "ENTRYPOINT isn't run, nor CMD, which may be its arguments: give the agent a command"
    if user and not name:
        yield f"USER {user} isn't taken: programs run as uid 1000"
    if given.volumes:
        yield f"VOLUME isn't taken: {', '.join(sorted(given.volumes)[:5])} lose what is written there"
    if given.healthcheck is not None:
        yield "HEALTHCHECK isn't taken: give the agent a health.command"
    if given.stop_signal:
        yield f"STOPSIGNAL {given.stop_signal} isn't taken: a stop is SIGTERM"
    if given.on_build:
        yield "ONBUILD isn't taken"
