"""What the instructions of a stage have set so far: variables, directory, user, shell, and what the image will say."""

import os
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from agentos.images.config import MAX_VARIABLES, Given, ImageConfig
from agentos.services.snapshots import layers

from .dockerfile import Instruction, expand, read_pairs, split_words
from .trees import OF_THE_JAIL

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class State:
    """Of one stage. ``arguments`` are ARGs with a value; ``env`` goes into the image.

    An ARG has the value that is ``asked`` for, else its default, else what is ``known`` before the first FROM.
    """

    def __init__(self, base: ImageConfig, asked: Mapping[str, str], known: Mapping[str, str], escape: str) -> None:
        self.asked, self.known, self.escape = asked, known, escape
        self.env = {"PATH": DEFAULT_PATH, **base.env}
        self.arguments: dict[str, str] = {}
        self.shell: Sequence[str] = ("/bin/sh", "-c")
        self.directory = base.working_dir or "/"
        self.given = Given(user=base.user or None, cmd=list(base.cmd), entrypoint=list(base.entrypoint))
        self.told: list[str] = []

    def copy(self) -> "State":
        """The state of a stage that begins with this one."""
        other = State(ImageConfig(), self.asked, self.known, self.escape)
        other.env, other.directory, other.shell = dict(self.env), self.directory, self.shell
        other.given, other.told = replace(self.given), list(self.told)
        return other

    @property
    def variables(self) -> Mapping[str, str]:
        return {**self.arguments, **self.env}

    def expand(self, one: Instruction, text: str) -> str:
        return expand(one, text, self.variables, self.escape)

    def path(self, one: Instruction, text: str) -> str:
        """An absolute path in the image. Raises :class:`.BadDockerfile` for one that can't be, or is a jail's own."""
        path = os.path.normpath(os.path.join(self.directory, text))
        if len(path.encode()) > layers.MAX_PATH:
            raise one.fail(f"{path[:100]}...: longer than Linux takes")
        path = f"/{path.lstrip('/')}"
        if (top := path.split("/")[1]) in OF_THE_JAIL:
            raise one.fail(f"{path}: an agent has a /{top} of its own: choose another directory")
        return path + ("/" if text.endswith("/") and path != "/" else "")

    def apply(self, one: Instruction) -> None:
        """Do an instruction that changes no file. Raises :class:`.BadDockerfile`."""
        match one.keyword:
            case "ENV":
                pairs = read_pairs(one, self.variables, self.escape)
                self._check_names(one, pairs)
                self.env |= pairs
            case "ARG":
                self._declare(one)
            case "WORKDIR":
                self.directory = self.path(one, self.expand(one, one.rest)).rstrip("/") or "/"
            case "USER":
                self.given.user = self.expand(one, one.rest)
            case "SHELL":
                words = one.words
                if not words:
                    raise one.fail('expected a list of words, such as ["/bin/bash", "-c"]')
                self.shell = tuple(words)
            case "CMD":
                self.given.cmd = self._read_command(one)
            case "ENTRYPOINT":
                self.given.entrypoint = self._read_command(one)
                self.given.cmd = []
            case "VOLUME":
                self.given.volumes = dict.fromkeys(one.words or self.expand(one, one.rest).split())
            case "HEALTHCHECK":
                self.given.healthcheck = one.rest if one.rest.upper() != "NONE" else None
            case "STOPSIGNAL":
                self.given.stop_signal = one.rest
            case "LABEL" | "EXPOSE" | "MAINTAINER":
                self.told.append(f"line {one.line}: {one.keyword} isn't taken: {one.rest[:100]}")
            case _:
                raise AssertionError(one.keyword)

    def _read_command(self, one: Instruction) -> list[str]:
        return list(one.words if one.words is not None else (*self.shell, one.rest))

    def _declare(self, one: Instruction) -> None:
        for word in split_words(one.rest, self.escape):
            name, has_default, default = word.partition("=")
            if has_default and name not in self.asked:
                value: str | None = self.expand(one, default)
            else:
                value = self.asked.get(name, self.known.get(name))
            self._check_names(one, [name])
            if value is not None:
                self.arguments[name] = value

    def _check_names(self, one: Instruction, names: "Sequence[str] | Mapping[str, str]") -> None:
        for name in names:
            if not _NAME.fullmatch(name) or name.startswith("AGENTOS_"):
                raise one.fail(f"expected the name of a variable, without AGENTOS_ in front, got {name[:100]!r}")
        if len(self.env) + len(self.arguments) + len(names) > MAX_VARIABLES:
            raise one.fail(f"with it there are more than {MAX_VARIABLES} variables")

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the programs of RUN: what Docker sets, and nothing of the jail's own."""
        own = {"HOME": "/root", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
        return {**own, **self.variables}

    def describe(self) -> Given:
        """The configuration of the image, as an archive has it."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        return replace(self.given, env=env, working_dir=self.directory)
