"""What a build does, step by step, with all words expanded: known before anything is read or run.

What can't be done raises :class:`.BadDockerfile` here, with its line.
"""

import os
import platform
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from agentos.images.config import MACHINES, ImageConfig
from agentos.images.errors import NoImage
from agentos.images.store import NAME, Image, Images

from .dockerfile import MAX_INSTRUCTIONS, BadDockerfile, Dockerfile, Heredoc, Instruction, Stage, expand_text
from .state import State

_HEREDOC_WORD = re.compile(r"\d*<<-?(['\"]?)([\w.]+)\1")


class Run(Struct, frozen=True):
    """A program. ``script`` is a file that it is to find at the path of its first word, if it isn't empty.

    ``owner`` is what USER says: files that it makes are that one's.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    directory: str
    user: str
    script: str = ""
    is_root: bool = False
    owner: str = ""


class Copy(Struct, frozen=True):
    """Files that are copied: ``origin`` is a stage or an image, or empty for the build's directory.

    ``owner`` is a user, a user and a group, or empty for root.
    """

    origin: str
    words: Sequence[str]
    texts: Mapping[str, str]  # of heredocs, by name
    target: str
    mode: int | None
    unpacks: bool
    owner: str = ""


class Directory(Struct, frozen=True):
    """A directory that is made if it isn't there; ``owner`` is what USER says."""

    path: str
    owner: str = ""


class Step(Struct, frozen=True):
    one: Instruction
    act: Run | Copy | Directory | None


class StagePlan(Struct, frozen=True):
    """``base`` is an image, the number of a stage, or None for scratch. ``state`` is that after the last step."""

    number: int
    stage: Stage
    base: Image | int | None
    steps: Sequence[Step]
    state: State


SCRIPT = "/.agentos-run"


def plan_build(
    file: Dockerfile, images: Images, arguments: Mapping[str, str], target: str, root: bool
) -> Sequence[StagePlan]:
    """The stages that the target, or else the last stage, needs, in order. Raises :class:`.BadDockerfile`.

    ``root``: without a USER programs are root of the image.
    """
    known = _read_arguments(file, arguments)
    plans: dict[int, StagePlan] = {}
    for number in range(len(file.stages)):
        plans[number] = _plan_stage(file, number, images, arguments, known, plans, root)
    wanted, waiting = set[int](), [_find_target(file, target)]
    while waiting:
        number = waiting.pop()
        if number not in wanted:
            wanted.add(number)
            base = plans[number].base
            waiting += [base] if isinstance(base, int) else []
            waiting += [
                other
                for step in plans[number].steps
                if isinstance(step.act, Copy)
                and (other := find_stage(file.stages[:number], step.act.origin)) is not None
            ]
    return [plans[number] for number in sorted(wanted)]


def find_stage(stages: Sequence[Stage], name: str) -> int | None:
    """The stage of this name or number."""
    if name.isdecimal() and len(name) <= len(str(MAX_INSTRUCTIONS)) and int(name) < len(stages):
        return int(name)
    return next((number for number, stage in enumerate(stages) if stage.name and stage.name == name.lower()), None)


def find_image(images: Images, name: str) -> Image:
    """An image by its name, or by a reference such as python:3.12, which is python-3.12 here. Raises NoImage."""
    short = re.sub(r"[:/@]+", "-", name)
    for each in (name, short):
        if NAME.fullmatch(each):
            try:
                return images.find(each)
            except NoImage:
                continue
    raise NoImage(f"there is no image {name!r}: `agentos image pull {name} {short}` or `agentos image import` makes it")


def _find_target(file: Dockerfile, target: str) -> int:
    found = find_stage(file.stages, target) if target else len(file.stages) - 1
    if found is None:
        raise BadDockerfile(1, f"--target {target}: there is no stage of that name")
    return found


def _read_arguments(file: Dockerfile, given: Mapping[str, str]) -> Mapping[str, str]:
    """The ARGs before the first FROM, what Docker sets by itself, and what is given."""
    machine = MACHINES.get(os.uname().machine, platform.machine())
    parts = {"PLATFORM": f"linux/{machine}", "OS": "linux", "ARCH": machine}
    known = {f"{where}{what}": value for where in ("TARGET", "BUILD") for what, value in parts.items()}
    state = State(ImageConfig(), given, known, file.escape)
    state.arguments |= {**known, **given}
    for one in file.arguments:
        state.apply(one)
    return state.arguments


def _plan_stage(
    file: Dockerfile,
    number: int,
    images: Images,
    given: Mapping[str, str],
    known: Mapping[str, str],
    former: Mapping[int, StagePlan],
    root: bool,
) -> StagePlan:
    stage = file.stages[number]
    begin = stage.begin
    globals_ = State(ImageConfig(), {}, {}, file.escape)
    globals_.arguments |= known
    name = globals_.expand(begin, stage.base)
    wanted = globals_.expand(begin, begin.flags.get("platform", ""))
    if wanted not in ("", known["TARGETPLATFORM"], known["TARGETARCH"]):
        raise begin.fail(f"--platform={wanted} isn't supported: this host is {known['TARGETPLATFORM']}")
    base: Image | int | None = find_stage(file.stages[:number], name)
    if isinstance(base, int):
        state = former[base].state.copy()
    elif name == "scratch":
        state = State(ImageConfig(), given, known, file.escape)
    else:
        try:
            base = find_image(images, name)
        except NoImage as error:
            raise begin.fail(str(error)) from None
        state = State(base.config, given, known, file.escape)
    steps = [Step(one, _plan_step(one, state, file, number, images, root)) for one in stage.steps]
    return StagePlan(number, stage, base, steps, state)


def _plan_step(
    one: Instruction, state: State, file: Dockerfile, number: int, images: Images, root: bool
) -> Run | Copy | Directory | None:
    if one.keyword == "RUN":
        return _plan_run(one, state, root)
    if one.keyword in ("COPY", "ADD"):
        act = _plan_copy(one, state)
        if act.origin and find_stage(file.stages[:number], act.origin) is None:
            try:
                find_image(images, act.origin)
            except NoImage as error:
                raise one.fail(f"--from={act.origin}: no stage before it has that name, and {error}") from None
        return act
    state.apply(one)
    return Directory(state.directory, state.given.user or "") if one.keyword == "WORKDIR" else None


def _plan_run(one: Instruction, state: State, root: bool) -> Run:
    script = ""
    command: Sequence[str] = one.words or (*state.shell, one.rest)
    if one.heredocs and _HEREDOC_WORD.fullmatch(one.rest):
        text = one.heredocs[0].text
        script = text if text.startswith("#!") else ""
        command = (SCRIPT,) if script else (*state.shell, text)
    elif one.heredocs:
        bodies = "".join(f"{each.text}{each.name}\n" for each in one.heredocs)
        command = (*state.shell, f"{one.rest}\n{bodies}")
    user = (state.given.user or "").partition(":")[0]
    is_root = root and user in ("", "root", "0")
    name = user if not user.isdecimal() and user != "root" else ""
    given = dict(state.environment)
    return Run(command, given, state.directory, name, script, is_root, "" if is_root else state.given.user or "")


def _plan_copy(one: Instruction, state: State) -> Copy:
    words = list(one.words or one.rest.split())
    if len(words) < 2:
        raise one.fail("expected one or more sources and a destination")
    *words, target = [state.expand(one, word) if not _HEREDOC_WORD.fullmatch(word) else word for word in words]
    texts = {each.name: _read_text(one, each, state) for each in one.heredocs}
    if not one.words:
        words = [word for word in words if not _HEREDOC_WORD.fullmatch(word)]
    for word in words:
        if re.match(r"https?://|ftp://|git@|git://", word):
            raise one.fail(f"{word[:100]}: only local files are copied: fetch it before, or in a RUN")
        if ".." in word.split("/"):
            raise one.fail(f"{word} has .. in its path: only what is below the directory is copied")
    mode = state.expand(one, one.flags.get("chmod", ""))
    if mode and not re.fullmatch(r"0?[0-7]{3}", mode):
        raise one.fail(f"--chmod={mode}: expected three octal digits")
    owner = state.expand(one, one.flags.get("chown", ""))
    if len(words) + len(texts) > 1 and not target.endswith("/"):
        raise one.fail(f"{target}: with several sources the destination is a directory and ends with /")
    origin = state.expand(one, one.flags.get("from", ""))
    path = state.path(one, target if target != "." else "./")
    return Copy(origin, words, texts, path, int(mode, 8) if mode else None, one.keyword == "ADD", owner)


def _read_text(one: Instruction, heredoc: Heredoc, state: State) -> str:
    return expand_text(one, heredoc.text, state.variables, state.escape) if heredoc.expand else heredoc.text
