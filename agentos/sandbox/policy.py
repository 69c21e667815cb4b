"""What a sandboxed program may see and use: frozen values, and how a child's stay within its parent's."""

import os.path
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen

MIB = 1 << 20
PROFILES = ("standard", "strict")  # of system calls, from the wider to the narrower


class BadPolicy(ValueError):
    """No sandbox can be made of this; the text says why."""


def _positive(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value < 1:
        raise BadPolicy(f"{attribute.name}: {value} is less than 1")


@frozen
class Limits:
    """How much a program and all that it starts may use. Sizes are bytes."""

    memory: int = field(default=512 * MIB, validator=_positive)
    max_pids: int = field(default=64, validator=_positive)
    cpu_quota: int = field(default=100_000, validator=_positive)  # microseconds of CPU time in 100 ms
    cpu_weight: int = field(default=100, validator=_positive)
    open_files: int = field(default=1024, validator=_positive)
    file_size: int = field(default=256 * MIB, validator=_positive)
    disk: int = field(default=256 * MIB, validator=_positive)
    inodes: int = field(default=16384, validator=_positive)
    tmp: int = field(default=64 * MIB, validator=_positive)

    def within(self, parent: "Limits") -> "Limits":
        """The lower of both, one by one."""
        return Limits(**{one.name: min(getattr(self, one.name), getattr(parent, one.name)) for one in _fields(Limits)})


def _fields(kind: type) -> "tuple[attrs.Attribute[object], ...]":
    return tuple(attrs.fields(kind))


def _absolute(_: object, attribute: "attrs.Attribute[Any]", path: Any) -> None:
    if path is not None and (not path.startswith("/") or os.path.normpath(path) != path or "\0" in path):
        raise BadPolicy(f"{attribute.name}: {path!r} is not an absolute path without . and ..")


@frozen
class Interpreter:
    """A Python, as it names itself: ``sys.executable``, ``sys.prefix`` and ``sys.base_prefix``."""

    executable: str = field(validator=_absolute)
    prefix: str = field(validator=_absolute)
    base_prefix: str = field(validator=_absolute)


@frozen
class Policy:
    """What exists inside, and which walls stand around it. Paths are the host's.

    ``script`` is a file in /agent, or ``code`` a directory as /agent, read-only; ``workspace`` a directory for
    /workspace, or None for one in memory; ``sdk`` the directory of the package ``agentos_sdk``; ``socket`` the one of
    the kernel's for this program, at /run/agentos.sock.
    """

    interpreter: Interpreter | None = None
    script: str | None = field(default=None, validator=_absolute)
    code: str | None = field(default=None, validator=_absolute)
    workspace: str | None = field(default=None, validator=_absolute)
    sdk: str | None = field(default=None, validator=_absolute)
    socket: str | None = field(default=None, validator=_absolute)
    network: bool = False  # the host's; otherwise loopback alone
    limits: Limits = Limits()
    profile: str = field(default="standard", validator=attrs.validators.in_(PROFILES))
    hostname: str = "agent"

    def __attrs_post_init__(self) -> None:
        if self.script is not None and self.code is not None:
            raise BadPolicy("script and code: /agent is either a directory or has one file")

    def within(self, parent: "Policy") -> "Policy":
        """This policy without what the parent hasn't got: lower limits, the narrower profile, no network of its own.

        :class:`BadPolicy` where it names a directory of the host's for writing that isn't in its parent's: there is no
        lesser directory to give instead.
        """
        if self.workspace is not None and not _beneath(self.workspace, parent.workspace):
            raise BadPolicy(f"workspace: {self.workspace} is not in the parent's workspace")
        return attrs.evolve(
            self,
            network=self.network and parent.network,
            limits=self.limits.within(parent.limits),
            profile=max(self.profile, parent.profile, key=PROFILES.index),
        )


def _beneath(path: str, directory: str | None) -> bool:
    return directory is not None and os.path.commonpath([path, directory]) == directory


@frozen
class Program:
    """What to run inside. Paths are the sandbox's; ``directory`` is where it starts."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(factory=dict)
    directory: str = field(default="/workspace", validator=_absolute)

    def __attrs_post_init__(self) -> None:
        if not self.argv or not self.argv[0]:
            raise BadPolicy("argv: there is no program to run")
        if any("\0" in text for text in (*self.argv, *self.environment, *self.environment.values())):
            raise BadPolicy("argv and environment: no text with NUL can be given to a program")
        if any(not name or "=" in name for name in self.environment):
            raise BadPolicy("environment: a name is neither empty nor has it a =")
