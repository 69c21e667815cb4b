"""One page, read by somebody who does all that it says."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest
import yaml  # type: ignore[import-untyped]
from attrs import evolve

from agentos.config.load import ConfigError, load
from agentos.llm.providers.offline_rules import read_rules
from agentos.presets import read_preset
from agentos.userland.cli.main import cli
from tests.docs.blocks import ROOT, Block
from tests.docs.compare import LACKS, missing, same
from tests.docs.terminal import Kernel, Shell
from tests.support import fork_server
from tests.support.ports import free_port
from tests.support.runs.forked import Commands
from tests.support.wire import PATIENCE

ADDRESS = re.compile(r"\b(?:127\.0\.0\.1|localhost):(\d{4,5})\b")
BIN = str(Path(sys.executable).parent)
LOOKS = re.compile(r"agentos (ps|tree|logs|events|metrics|audit|approvals|permissions suggest)\b(?!.* (-f|--follow))")
ANSWERS = re.compile(r"agentos (approve|deny)\b")  # a request that may not have come yet: then nothing is done
WRONG = "wrong.toml"
BOTH = "it writes to stdout and stderr, whose order nothing promises: show one of them, or join them with 2>&1"
MAKE = f'make() {{ command make -n -C {shlex.quote(str(ROOT))} "$@" >/dev/null; }}'
TELL = 'agentos() {{ case "$1 $2" in {}) set -- "$@" --state-dir {} ;; esac; command agentos "$@"; }}'
IMPORT, AUDIT = '"image import"', 'audit*|"image import"'


def all_are_up(printed: str) -> bool:
    """Whether a kernel is ready, and something has become of each agent that wasn't up then."""
    if "| isolation " not in printed:
        return False
    missing = re.search(r"\| not up yet: (.+)", printed)
    return missing is None or all(f"| {name}: " in printed for name in missing[1].strip().split(", "))


class Visit:
    """A directory, a terminal and, when it is needed, a kernel.

    Kernels, commands and clients are forked from a process that has imported them, unless they shall be executed.
    """

    def __init__(self, execute: bool = False) -> None:
        self._execute = execute
        self.base = Path(tempfile.mkdtemp(prefix="aos-", dir="/tmp"))
        self.home, self.runtime, self.state = self.base / "ada", self.base / "r", self.base / "s"
        for directory in (self.home, self.runtime):
            directory.mkdir(mode=0o700)
        path = f"{BIN}:{os.environ.get('PATH', os.defpath)}"
        self.env = {
            "PATH": path,
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._commands = None if execute else Commands(self.base)
        if not execute:  # a reader's pytest has no other plugins, of which each is imported
            self.env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "agentos_sdk.testing.pytest_plugin"}
        prefix = "" if self._commands is None else f"{self._commands.directory}:"
        self.shell = Shell(self.home, {**self.env, "PATH": prefix + path})
        self.shell.run(MAKE)
        if os.geteuid() == 0:
            self.shell.run(TELL.format(IMPORT, shlex.quote(str(self.state))))
        self.kernel: Kernel | None = None
        self.metrics: set[str] = set()  # names of those that were scraped last
        self._ports: defaultdict[str, int] = defaultdict(free_port)  # by the ports that the page names

    def close(self) -> None:
        self.shell.close()
        if self._commands is not None:
            self._commands.close()
        try:
            if self.kernel is not None:
                self.kernel.close()
        finally:
            shutil.rmtree(self.base)

    def do(self, block: Block) -> None:
        """Do what a block says; fails where the page doesn't hold."""
        text = block.text
        for named in {found[1] for found in ADDRESS.finditer(block.page.read_text())}:
            text = re.sub(rf"\b{named}\b", str(self._ports[named]), text)
        CHECKS[block.language](self, evolve(block, text=text))

    # -- One for each language -------------------------------------------------------------------------------------

    def text(self, block: Block) -> None:
        prompts = [line for line in block.text.split("\n") if line.startswith("$ ")]
        assert not prompts, f"{block.where}: a block with commands is a console block"

    def json(self, block: Block) -> None:
        json.loads(block.text)

    def yaml(self, block: Block) -> None:
        """Configuration of Prometheus: its targets answer, and have every metric that its rules name."""
        self.begin_kernel()
        config = yaml.safe_load(block.text)
        targets = [
            target
            for job in config.get("scrape_configs", ())
            for one in job["static_configs"]
            for target in one["targets"]
        ]
        for target in targets:
            with urllib.request.urlopen(f"http://{target}/metrics", timeout=PATIENCE) as response:
                self.metrics = set(re.findall(r"^# TYPE (\w+) ", response.read().decode(), re.MULTILINE))
        named = set(re.findall(r"\bagentos_\w+", block.text))
        assert named <= self.metrics, f"{block.where}: the kernel has no {named - self.metrics}"

    def bash(self, block: Block) -> None:
        self._begin_kernel_for(block.text)
        status, printed, errors = self.shell.run("set -e\n" + block.text + "set +e")
        assert status == 0, f"{block.where}: exit status {status}\n" + "\n".join([*printed, *errors])

    def perl(self, block: Block) -> None:
        modules = re.findall(r"^use ([A-Z]\w*::[\w:]+);$", block.text, re.MULTILINE)
        status, _, _ = self.shell.run(f"perl {' '.join(f'-M{module}' for module in modules)} -e 1")
        if status != 0:
            pytest.skip(f"there is no perl with {', '.join(modules)} here")
        self._write(block)

    def ini(self, block: Block) -> None:
        """A systemd unit: what it starts has the options that are used."""
        unit = configparser.RawConfigParser(strict=False)
        unit.read_string(block.text)
        program, *words = shlex.split(unit["Service"]["ExecStart"])
        assert os.path.basename(program) == "agentos"
        command = cli.get_command(click.Context(cli), words[0])
        assert command is not None, f"{block.where}: there is no command {words[0]}"
        known = {name for option in command.params for name in option.opts}
        unknown = [word for word in words[1:] if word.startswith("--") and word not in known]
        assert not unknown, f"{block.where}: agentos {words[0]} has no {unknown}"

    def toml(self, block: Block) -> None:
        path = self.home / (block.file or "agentos.toml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
        data = tomllib.loads(block.text)
        if path.parent.name == "presets":
            read_preset(path.stem, [path.parent])
            return
        if "rule" in data:
            read_rules(str(path))
            return
        for script in scripts_in(data):
            if not (self.home / script).exists() and path.name != WRONG:
                (self.home / script).parent.mkdir(parents=True, exist_ok=True)
                (self.home / script).write_text("")
        try:
            load(path)
        except ConfigError as error:
            assert path.name == WRONG, f"{block.where}: {error}"
        else:
            assert path.name != WRONG, f"{block.where}: nothing is wrong with it"

    def python(self, block: Block) -> None:
        if block.file is not None:
            compile(block.text, block.file, "exec")
            self._write(block)
            return
        self.begin_kernel()
        if self._execute:
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", block.text],
                cwd=self.home,
                env=self.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE,
            )
        else:
            strict = f"import warnings; warnings.simplefilter('error')\n{block.text}"
            done = fork_server.shared().run(["-c", strict], str(self.home), self.env, None, PATIENCE)
        assert done.returncode == 0, f"{block.where}:\n{(done.stdout + done.stderr).decode()}"

    def console(self, block: Block) -> None:
        for command, shown in commands_in(block.text):
            if command is None:
                self._expect_of_kernel(block, shown)
            elif command == "^C":
                assert self.kernel is not None, f"{block.where}: nothing runs that could be interrupted"
                self.kernel.interrupt()
                self._expect_of_kernel(block, shown)
                assert self.kernel.ended() == 0, f"{block.where}: {self.kernel.fresh()}"
                self.kernel.close()
                self.kernel = None
            elif command == "agentos run" or command.startswith("agentos run "):
                self._run_kernel(shlex.split(command)[2:])
                self._expect_of_kernel(block, shown)
            else:
                self._type(block, command, shown)

    # -- Steps -----------------------------------------------------------------------------------------------------

    def _write(self, block: Block) -> None:
        assert block.file is not None, f"{block.where}: its first line says which file it is"
        path = self.home / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)

    def _type(self, block: Block, command: str, shown: list[str]) -> None:
        self._begin_kernel_for(command)
        deadline = time.monotonic() + PATIENCE / 2
        delay = 0.1
        while True:
            _, out, err = self.shell.run(command)
            assert not out or not err, f"{block.where}: $ {command}\n{BOTH}:\n" + "\n".join([*out, "and", *err])
            printed = [self._for_people(line) for line in out or err if not LACKS.fullmatch(line)]
            if same(shown, printed):
                return
            is_early = LOOKS.match(command) or (err and ANSWERS.match(command))
            if not is_early or time.monotonic() > deadline:
                break
            time.sleep(delay)
            delay = min(2 * delay, 1.0)  # a command takes as much CPU time as the agent that it waits for
        kernel = self.kernel.fresh() if self.kernel is not None else "(none)"
        sides = "\n".join(["expected:", *shown, "got:", *printed, "the kernel since:", kernel])
        raise AssertionError(f"{block.where}: $ {command}\n{sides}")

    def _run_kernel(self, words: list[str]) -> None:
        if self.kernel is not None:
            self.kernel.close()
        config = self.home / "agentos.toml"
        told = "--state-dir" in words or (config.exists() and "state_dir" in config.read_text())
        if os.geteuid() == 0 and not told:
            words = [*words, "--state-dir", str(self.state)]  # root's default place is the host's
            self.shell.run(TELL.format(AUDIT, shlex.quote(str(self.state))))
        _, where, _ = self.shell.run("pwd")
        self.kernel = Kernel(words, where[0], self.env, self._execute)

    def begin_kernel(self) -> None:
        if self.kernel is None:
            self._run_kernel([])
            assert self.kernel is not None
            assert self.kernel.until(all_are_up), self.kernel.fresh()

    def _begin_kernel_for(self, commands: str) -> None:
        """The page's kernel, if a command talks to one."""
        if re.search(r"^(\w+=\S+ )*(agentos (?!run|check|-|[a-z]+ --help)|python|perl)", commands, re.MULTILINE):
            self.begin_kernel()

    def _expect_of_kernel(self, block: Block, shown: list[str]) -> None:
        assert self.kernel is not None, f"{block.where}: a console block begins with a command"
        came = self.kernel.until(lambda text: not missing(shown, self._lines(text)))
        absent = missing(shown, self._lines(self.kernel.fresh())) if not came else []
        assert came, f"{block.where}: these lines did not come: {absent}, but\n{self.kernel.fresh()}"

    def _lines(self, text: str) -> list[str]:
        return [self._for_people(line) for line in text.split("\n")]

    def _for_people(self, line: str) -> str:
        return line.replace(str(self.home), "/home/ada").replace(str(self.runtime), "/run/user/1000")


CHECKS: Mapping[str, Callable[[Visit, Block], None]] = {
    "text": Visit.text,
    "json": Visit.json,
    "yaml": Visit.yaml,
    "bash": Visit.bash,
    "perl": Visit.perl,
    "ini": Visit.ini,
    "toml": Visit.toml,
    "python": Visit.python,
    "console": Visit.console,
}


def commands_in(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """Each command with the output shown below it; None before the first."""
    command: str | None = None
    shown: list[str] = []
    begun = False
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("$ ") or line == "^C":
            if begun:
                yield command, shown
            command, shown = line.removeprefix("$ "), []
        elif line.startswith("> ") and command is not None and not shown:
            command += "\n" + line.removeprefix("> ")
        else:
            shown.append(line)
        begun = True
    yield command, shown


def scripts_in(data: object) -> Iterator[str]:
    """Every ``script`` of a configuration's children."""
    if isinstance(data, dict):
        if isinstance(script := data.get("script"), str):
            yield script
        for value in data.values():
            yield from scripts_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from scripts_in(value)
