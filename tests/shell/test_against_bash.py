"""Whatever bash really runs was read: random texts, run by the real bash where every command is a stub.

More of them than a test has time for: ``python -m tests.shell.test_against_bash SECONDS [SEED]``.
"""

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos.shell.programs import BUILTINS
from agentos.shell.reader import parse_text
from agentos.shell.reading import Commands, Opaque, Reading, Word
from tests.support.runs.rounds import rounds

from .texts import random_text

BASH = shutil.which("bash")
NOBODY = 61234  # a user that nobody else is
STUB = '#!/bin/sh\nprintf "%s\\0" "$#" "${0##*/}" "$@" >> "${0%/bin/*}/log"\n'
NOT_FOUND = '() { builtin printf "%s\\0" "$(($# - 1))" "$@" >> LOG; }'
REAL = ("bash", "sh", "env", "nice", "nohup", "timeout", "xargs", "stdbuf", "find")


@frozen
class Ran:
    """What bash ran, and the files it made."""

    commands: frozenset[tuple[str, ...]]
    files: frozenset[str]


class Stubs:
    """A directory where every command writes down its arguments, anew for each run: what an earlier one left behind
    finds nothing to write to."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bin, self.runs = directory, directory / "commands", 0
        self.bin.mkdir()
        for name in ("a", "b", "c"):
            (self.bin / name).write_text(STUB)
            (self.bin / name).chmod(0o755)
        for name in REAL:
            if found := shutil.which(name):
                (self.bin / name).symlink_to(found)
        directory.chmod(0o755)

    def run(self, text: str, seconds: float = 1.0) -> Ran:
        self.runs += 1
        place = self.directory / str(self.runs)
        home, log = place / "home", place / "log"
        home.mkdir(parents=True)
        log.write_bytes(b"")
        for path in (home, log):
            path.chmod(0o777)
        (place / "bin").symlink_to(self.bin)
        environment = {
            "PATH": str(place / "bin"),
            "LC_ALL": "C.UTF-8",
            "BASH_FUNC_command_not_found_handle%%": NOT_FOUND.replace("LOG", str(log)),
        }
        process = subprocess.Popen(
            [str(BASH), "--noprofile", "--norc", "-c", "--", text], cwd=home, env=environment, preexec_fn=confine,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end(process)
        files = frozenset(entry.name for entry in home.iterdir() if entry.is_file())
        commands = frozenset(logged(log.read_bytes()))
        shutil.rmtree(place, ignore_errors=True)
        return Ran(commands, files)


def end(process: "subprocess.Popen[bytes]") -> None:
    """With all of its session; what left it has no terminal, no log and a second to live."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def confine() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))


def logged(data: bytes) -> list[tuple[str, ...]]:
    fields, found = data.decode(errors="surrogateescape").split("\0")[:-1], []
    while fields:
        count = int(fields[0]) + 2
        if len(fields) < count:
            break
        found.append(tuple(fields[1:count]))
        fields = fields[count:]
    return found


def can_be(words: tuple[Word, ...], arguments: tuple[str, ...]) -> bool:
    """Whether these words may have become those arguments."""
    places = {0}
    for word in words:
        if word.several:
            places = set(range(min(places), len(arguments) + 1))
        else:
            places = {at + 1 for at in places if at < len(arguments) and word.text in (None, arguments[at])}
        if not places:
            return False
    return len(arguments) in places


def misread(reading: Reading, ran: Ran) -> str | None:
    """A command that was run, or a file that was written, and that is not in the reading."""
    for arguments in ran.commands:
        if not any(can_be(command.words, arguments) for command in reading.commands):
            return f"{reading.text!r} ran {arguments!r}, was read as {[each.source for each in reading.commands]}"
    targets = [redirect.target.text for redirect in reading.redirects if redirect.writes]
    for file in ran.files:
        if file not in targets:
            return f"{reading.text!r} wrote {file!r}, was read as {targets}"
    return None


def check(stubs: Stubs, text: str) -> str:
    """Whether the text is in the subset; what bash makes of it is checked if it is."""
    reading = parse_text(text)
    if not isinstance(reading, Commands):
        return "opaque"
    wrong = misread(reading, stubs.run(text))
    assert wrong is None, wrong
    return "read"


@pytest.fixture(scope="module")
def stubs() -> Iterator[Stubs]:
    with tempfile.TemporaryDirectory() as directory:
        yield Stubs(Path(directory))


@pytest.mark.skipif(BASH is None, reason="there is no bash here to compare with")
def test_the_stubs_see_all_that_is_run_and_written(stubs: Stubs) -> None:
    ran = stubs.run("a 'x y' $(b) | nosuch -x > f & eval c; wait", seconds=60)

    assert ran == Ran(frozenset({("a", "x y"), ("b",), ("nosuch", "-x"), ("c",)}), frozenset({"f"}))
    assert misread(parse_text("a 'x y' | b | nosuch -x > f; c"), ran) is None
    assert "'c'" in (misread(parse_text("a 'x y' | b | nosuch -x > f"), ran) or "")
    assert "'f'" in (misread(parse_text("a 'x y' | b | nosuch -x; c"), ran) or "")


def test_many_random_texts_are_read_and_the_others_are_opaque_for_many_reasons() -> None:
    draw = random.Random(1)
    readings = [parse_text(random_text(draw)) for _ in range(1000)]
    reasons = {reading.construct for reading in readings if isinstance(reading, Opaque)}

    assert sum(isinstance(reading, Commands) for reading in readings) > 200
    assert len(reasons) > 80


@pytest.mark.skipif(BASH is None, reason="there is no bash here to compare with")
@settings(max_examples=rounds(100), suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 32))
@pytest.mark.usefixtures("long")
def test_bash_runs_nothing_but_the_commands_that_were_read(stubs: Stubs, seed: int) -> None:
    check(stubs, random_text(random.Random(seed)))


@pytest.mark.skipif(BASH is None, reason="there is no bash here to compare with")
def test_every_builtin_of_this_bash_is_known() -> None:
    found = subprocess.run([str(BASH), "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()

    assert set(found) <= BUILTINS, "each of them is opaque, or judged in agentos/shell/effects.py"


def reaped() -> bool:
    """An orphan; a user may have only so many, dead ones included, and then nothing would run any more."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def main(seconds: float, seed: int) -> None:
    draw, until, counts = random.Random(seed), time.monotonic() + seconds, dict[str, int]()
    with tempfile.TemporaryDirectory() as directory:
        stubs = Stubs(Path(directory))
        while time.monotonic() < until:
            try:
                what = check(stubs, random_text(draw))
            except AssertionError as error:
                what = "WRONG"
                print(error, flush=True)
            counts[what] = counts.get(what, 0) + 1
            while os.getpid() == 1 and reaped():  # in a namespace of its own: unshare -pnf --kill-child
                pass
    print(counts)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
