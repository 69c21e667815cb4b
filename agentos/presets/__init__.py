"""Presets: what a program of others needs to run in a jail, as data. One file a program, which a user adds to.

A preset is expanded to variables, a memory limit and a command before SPAWN, so the kernel knows no vendor
(docs/decisions/0079). Those of the package are beside this file; a user's are in ``presets/`` beside the configuration
file, or in ``$XDG_CONFIG_HOME/agentos/presets``. A preset decides how a program starts, so none is taken from another
user, nor from a workspace.
"""

import os
import re
import shlex
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from agentos.structs import learn
from agentos_sdk.encoding.quantities import size
from agentos_sdk.project import trusted_uids

SHIPPED = Path(__file__).parent
DIRECTORY = "presets"  # beside the configuration file
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MAX_FILE_BYTES = 64 << 10
CACHES = "/workspace/.cache"
FOR_ALL = {"DO_NOT_TRACK": "1", "OTEL_SDK_DISABLED": "true", "XDG_CACHE_HOME": CACHES}
IN_JAIL = ("/agent/", "/workspace/", "/usr/", "/bin/")  # where a jail has programs
HEAP_SHARE = 0.75  # of the memory limit that Node's heap may have: beyond, V8 says so, where the jail would kill


class BadPreset(ValueError):
    """There is no such preset, or its file can't be used; the text names it and what to do."""


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """One program. ``{model}`` in ``env`` and ``args`` is the kernel's model; ``{task}`` in ``task`` what it is to do.

    ``about`` says whose program it is, ``install`` how to get it. ``args`` go behind the first word of a command.
    ``files`` are settings that the program finds in its HOME, by their paths there; one that is there already stays.
    ``node``: Node's heap is kept below ``memory``. ``endpoint``: it asks the kernel's endpoint of a vendor's protocol.
    ``terminals``: it opens pseudo-terminals. ``steered`` is the command for a task in which it takes further messages
    on its standard input, each in the form ``messages``; without ``{task}``, the task is the first of them.
    """

    about: str
    install: str = ""
    memory: str = "1G"
    node: bool = False
    terminals: bool = False
    endpoint: bool = True
    env: Mapping[str, str] = {}
    args: Sequence[str] = ()
    task: Sequence[str] = ()
    steered: Sequence[str] = ()
    messages: Literal["lines", "stream-json"] = "lines"
    files: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        for path in self.files:
            if os.path.isabs(path) or ".." in path.split("/") or not os.path.basename(path):
                raise ValueError(f"files: expected a path of a file below HOME, got {path!r}")
        if self.messages != "lines" and not self.steered:
            raise ValueError("messages: expected none without steered, the command that reads them")

    @property
    def needs_model(self) -> bool:
        """Whether the program has to be told which model to ask."""
        return any("{model}" in value for value in (*self.env.values(), *self.args, *self.files.values()))

    @property
    def bytes(self) -> int:
        """The memory limit of an agent that has none of its own."""
        return size(self.memory) or 0

    def command(self, words: Sequence[str], model: str) -> Sequence[str]:
        """The command ``words`` with the preset's arguments; a shell writes its ``files`` first.

        Raises :class:`BadPreset` if there are files and no command, or its program is a path of the host's, which no
        shell finds.
        """
        words = [*words[:1], *(arg.replace("{model}", model) for arg in self.args), *words[1:]] if words else []
        if not self.files:
            return words
        if not words:
            raise BadPreset("its files are written for a command, and this is a script")
        if "/" in words[0] and not words[0].startswith(IN_JAIL):
            raise BadPreset(f"its files need a program's name in PATH, or its path in the jail, got {words[0]!r}")
        lines = ["set -e"]
        for path, text in self.files.items():
            file, made = (f'"$HOME"/{shlex.quote(each)}' for each in (path, os.path.dirname(path)))
            content = shlex.quote(text.replace("{model}", model))
            lines.append(f"test -e {file} || {{ mkdir -p {made}; printf %s {content} > {file}; }}")
        return ["/bin/sh", "-c", "\n".join([*lines, 'exec "$@"']), "sh", *words]

    def environment(self, model: str = "", memory: int | None = None) -> dict[str, str]:
        """The variables of a program that asks ``model``, with so many bytes of memory (default: the preset's)."""
        heap = int((self.bytes if memory is None else memory) * HEAP_SHARE) >> 20
        node = {"NODE_OPTIONS": f"--max-old-space-size={heap}"} if self.node else {}
        return {**FOR_ALL, **node, **{name: value.replace("{model}", model) for name, value in self.env.items()}}


learn(Preset)


def list_presets(directories: Sequence[Path] = ()) -> dict[str, Path]:
    """The file of each preset by its name; one in ``directories`` goes before the package's."""
    found = dict[str, Path]()
    for directory in (*directories, SHIPPED):
        for file in sorted(directory.glob("*.toml")):
            if NAME.fullmatch(file.stem):
                found.setdefault(file.stem, file)
    return dict(sorted(found.items()))


def user_directories(project: Path | None) -> Sequence[Path]:
    """Where a user's own presets are; ``project`` has the configuration file, if there is one."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return *([project / DIRECTORY] if project is not None else []), Path(home) / "agentos" / "presets"


def check_place(name: str, directories: Sequence[Path], workspaces: Iterable[str]) -> None:
    """Raise :class:`BadPreset` if its file is in one of these workspaces, so that an agent could have written it.

    So are a link there to a file elsewhere, and what is in a directory that a link there leads to.
    """
    file = list_presets(directories).get(name)
    if file is None or file.parent == SHIPPED:
        return
    ways = [os.path.join(os.path.realpath(above), file.relative_to(above)) for above in file.parents]
    for place in workspaces:
        within = os.path.join(os.path.realpath(place), "")
        if any(way.startswith(within) for way in (os.path.realpath(file), *ways)):
            fix = "move it to ~/.config/agentos/presets"
            raise BadPreset(f"the preset {name} is in the workspace {place}, where an agent can write it: {fix}")


def read_preset(name: str, directories: Sequence[Path] = ()) -> Preset:
    """Read a preset. Raises :class:`BadPreset`."""
    presets = list_presets(directories)
    if name not in presets:
        raise BadPreset(f"expected one of {', '.join(presets)}, got {name!r}")
    file = presets[name]
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as stream:
            _check(file, os.fstat(stream.fileno()))
            text = stream.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise BadPreset(f"{file}: larger than {MAX_FILE_BYTES >> 10} KiB")
        preset = msgspec.convert(tomllib.loads(text.decode()), Preset)
        if not preset.bytes:
            raise ValueError(f'memory: expected a size such as "1G", got {preset.memory!r}')
        if not (preset.about + preset.install).isprintable():  # they are shown, and stand in comments of a new file
            raise ValueError("about, install: expected one line without control characters")
    except OSError as error:
        raise BadPreset(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, no TOML, another type
        raise BadPreset(f"{file}: {error}") from None
    return preset


def _check(file: Path, found: os.stat_result) -> None:
    """Raise :class:`BadPreset` for what isn't a file, or another user's than this, root, or that of the project."""
    if not stat.S_ISREG(found.st_mode):
        raise BadPreset(f"{file}: not a regular file")
    trusted = trusted_uids() | {os.stat(file.parent.parent).st_uid}
    for uid in (found.st_uid, os.lstat(file).st_uid, os.stat(file.parent).st_uid):
        if file.parent != SHIPPED and uid not in trusted:
            raise BadPreset(f"{file}: it or its directory belongs to uid {uid}, so it isn't taken: remove it")
