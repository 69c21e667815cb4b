"""``agentos task --with``: a coding agent of others works on a task by its preset, as the loop does."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.userland.cli.task.options import find_programs
from agentos.userland.task.programs import BadProgram, find_root, place, read_interpreter
from agentos_sdk import AgentOSClient
from tests.cli.conftest import Agentos
from tests.cli.task.test_attempts import CHECK, RIGHT, WRONG, directory, write
from tests.cli.task.test_task import configure, name_of, tree
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, shared

CODER = """#!/usr/bin/env python3
import json, os, sys, time, urllib.request
task = sys.argv[-1]
with open(os.path.expanduser("~/.coder/settings.json")) as file:
    print(json.load(file)["greeting"], task, flush=True)
asked = json.dumps({"model": os.environ["CODER_MODEL"], "messages": [{"role": "user", "content": task}]})
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
text = "more"
while text == "more":
    with urllib.request.urlopen(urllib.request.Request(url, asked.encode(), headers)) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"]
if "wait" in text:
    print("waiting", flush=True)
    time.sleep(1000)
if text == "grow":
    with open("data.bin", "ab") as file:
        file.write(b"more")
with open("add.py", "w") as file:
    file.write(text)
print("\\x1b[1;38;5;2madd.py\\x1b[m is \\x1b[2Kwritten\\x1b[0m", file=sys.stderr, flush=True)
sys.exit(3 if "2 - 2" in text else 0)
"""
PRESET = """
about = "a coder of this test"
install = "cp coder /opt/coder/bin"
task = ["coder", "--yes", "{task}"]
args = ["--quiet"]
[env]
HOME = "/tmp"
CODER_MODEL = "{model}"
[files]
".coder/settings.json" = '{"greeting": "working on"}'
"""
RULES: list[dict[str, Any]] = [
    {"match": "^Wait", "reply": "wait"},
    {"match": "^Fail", "reply": WRONG},
    {"match": "^Spend", "reply": "more"},
    {"match": "^Grow", "reply": "grow"},
    {"system": "agent that works on a task", "match": "^Repair", "tool_calls": write(WRONG)},
    {"tool": "write_file", "match": "wrote", "tool_calls": [("done", {"summary": "It adds."})]},
    {"match": "^Repair", "reply": RIGHT},
]

__all__ = ["directory"]


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    config = configure(RULES, tmp_path_factory.mktemp("rules"))
    endpoint = '"offline"\nmodel = "offline"\nopenai_endpoint = true\n'
    with shared(config.replace('"offline"\n', endpoint)) as started:
        install_coder(started.place)
        yield started


def install_coder(project: Path) -> str:
    """Install the coder of this test, and its preset for the project; returns a PATH that has it."""
    place = project / "coder" / "bin"
    place.mkdir(parents=True, exist_ok=True)
    (place / "coder").write_text(CODER)
    (place / "coder").chmod(0o755)
    (project / "presets").mkdir(exist_ok=True)
    (project / "presets" / "coder.toml").write_text(PRESET)
    return f"{place}:{os.environ['PATH']}"


@pytest.fixture
def path(kernel: Kernel) -> str:
    return f"{kernel.place}/coder/bin:{os.environ['PATH']}"


def test_a_program_works_in_an_overlay_and_its_output_is_shown(agentos: Agentos, path: str, directory: Path) -> None:
    before = tree(directory)

    done = agentos("task", "--with", "coder", "Repair add.py", "--dir", str(directory), PATH=path)

    name = name_of(done.stdout)
    assert done.returncode == 0, done
    assert done.stdout.startswith("  working on Repair add.py\n")
    for part in (r"  add.py is \x1b[2Kwritten", f"\n{name}: done (1 step, ", "  M add.py\n", f"`agentos apply {name}`"):
        assert part in done.stdout
    assert tree(directory) == before
    assert agentos("apply", name, "--yes").returncode == 0
    assert (directory / "add.py").read_text() == RIGHT
    assert agentos("undo", name).returncode == 0
    assert tree(directory) == before
    assert agentos("tasks").stdout.splitlines()[1].split()[:2] == [name, "done"]
    assert "of coder, of which no conversation is kept" in agentos("task", "--resume", name, "More").stderr


def test_a_file_that_is_larger_than_an_agents_default_limit_of_one_is_changed(
    agentos: Agentos, path: str, directory: Path
) -> None:
    (directory / "data.bin").touch()
    os.truncate(directory / "data.bin", 257 << 20)

    done = agentos("task", "--with", "coder", "Grow it", "--dir", str(directory), PATH=path)

    assert done.returncode == 0, done
    assert "  M data.bin\n" in done.stdout
    assert agentos("apply", name_of(done.stdout), "--yes", "data.bin").returncode == 0
    assert (directory / "data.bin").stat().st_size == (257 << 20) + 4


def test_programs_and_the_loop_are_compared(agentos: Agentos, kernel: Kernel, path: str, directory: Path) -> None:
    programs = ("--with", "coder", "--with", "loop", "--attempts", "3")

    done = agentos("task", *programs, "--check", CHECK, "Repair add.py", "--dir", str(directory), "--json", PATH=path)

    rows = json.loads(done.stdout.splitlines()[-1])["attempts"]
    assert done.returncode == 0, done
    assert [(row["by"], row["verdict"], row["size"]["paths"]) for row in rows] == [
        *(("coder", "passed", 1), ("loop", "exit 1", 1), ("coder", "passed", 1)),
    ], done
    assert all(row["tokens"] > 0 for row in rows)
    with kernel.client() as client:
        spawned = client.fetch(f"task-spawn/{rows[1]['attempt']}", "agent")["value"]
    assert json.loads(spawned["env"]["LOOP_TASK"])["budget"]["iterations"] == 20, "the loop keeps its default"


@pytest.mark.parametrize(
    "arguments",
    [
        ("task", "--with", "coder", "Repair add.py", "--dir", "."),
        ("task", "--with", "loop", "--with", "coder", "Repair add.py", "--dir", "../{}"),
        ("spawn", "--framework", "coder", "--workspace", ".", "x", "--", "true"),
    ],
)
def test_no_preset_is_taken_of_the_directory_that_an_agent_works_on(
    agentos: Agentos, kernel: Kernel, path: str, arguments: tuple[str, ...]
) -> None:
    done = agentos(*(one.format(kernel.place.name) for one in arguments), PATH=path)

    assert "the preset coder is in the workspace" in done.stderr, done
    assert "move it to ~/.config/agentos/presets" in done.stderr


def test_an_agent_with_a_preset_is_told_the_kernels_model(agentos: Agentos) -> None:
    look = ("grep", "-z", "^CODER_MODEL=offline$", "/proc/self/environ")  # --quiet comes from the preset

    done = agentos("spawn", "x", "--framework", "coder", "--wait", "--", *look)

    assert done.returncode == 0, done


def test_without_a_configuration_file_a_directory_has_no_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a repository that was cloned says which directory of the host its program is in."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "codex.toml").write_text('about = "x"\ntask = ["sh", "-c", "{task}"]\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    with pytest.raises(BadProgram, match="there is no program 'codex' in PATH"):
        find_programs(AgentOSClient(), ("codex",), None, None, None)


@pytest.mark.parametrize(
    ("text", "more", "status", "said"),
    [
        ("Fail", (), 1, "failed: exit status 3 (1 step"),
        ("Wait", ("--budget", "time=1s"), 2, "budget: not done: its time is over"),
        ("Spend", ("--budget", "iterations=2"), 2, "the budget has refused a question"),
    ],
)
def test_a_program_that_fails_or_uses_up_its_budget_says_so(
    agentos: Agentos, path: str, directory: Path, text: str, more: tuple[str, ...], status: int, said: str
) -> None:
    done = agentos("task", "--with", "coder", text, "--dir", str(directory), *more, PATH=path)

    assert done.returncode == status, done
    assert said in done.stdout


def test_with_print_the_result_is_what_a_program_has_said(agentos: Agentos, path: str) -> None:
    done = agentos("task", "--with", "coder", "-p", "Repair it", PATH=path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "working on Repair it\n", ""), done


def test_ctrl_c_ends_a_program_at_once(kernel: Kernel, path: str, directory: Path) -> None:
    terminal = Terminal(kernel, "task", "--with", "coder", "Wait", "--dir", str(directory), PATH=path)
    terminal.wait_for("  waiting")
    terminal.type("Faster\n")
    terminal.wait_for("takes no messages while it runs")
    terminal.type("\x03")
    terminal.wait_for("it is ended")

    assert terminal.end() == 130
    assert "--resume" not in terminal.shown
    terminal.close()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--with", "codex", "x"], "no program 'codex' in PATH; install Codex CLI, by OpenAI: npm install"),
        (["--with", "unheard-of", "x"], "expected one of agents, aider"),
        (["--with", "crewai", "x"], "its preset has no command for a task"),
        (["--with", "coder", "--with", "loop", "--attempts", "1", "x"], "1 is not in the range"),
        (["--with", "coder", "--with", "loop", "x"], "give --dir"),
        (["--with", "coder", "--continue", "x"], "keep directory, permissions, model and program"),
    ],
)  # fmt: skip
def test_what_a_program_lacks_is_said_in_one_line(agentos: Agentos, arguments: list[str], error: str) -> None:
    before = agentos("tasks").stdout

    done = agentos("task", *arguments)

    assert done.returncode in (1, 2)
    assert error in " ".join(done.stderr.split())
    assert agentos("tasks").stdout == before


def make(path: Path, text: str = "x") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_jail_shows_what_a_program_was_installed_into(tmp_path: Path) -> None:
    prefix, project, versions = tmp_path / "prefix", tmp_path / "project", tmp_path / "share" / "versions"
    real = make(prefix / "lib" / "node_modules" / "codex" / "cli.js")
    (prefix / "bin").mkdir()
    (prefix / "bin" / "codex").symlink_to("../lib/node_modules/codex/cli.js")
    local = make(project / "node_modules" / "codex" / "cli.js")
    own = make(versions / "2.1")
    script = make(tmp_path / "env" / "bin" / "aider", f"#!{tmp_path}/env/bin/python3\n")

    assert find_root(str(prefix / "bin" / "codex"), real) == str(prefix)
    assert find_root(f"{project}/node_modules/.bin/codex", local) == str(project)
    assert find_root("/root/.local/bin/claude", own) == str(versions)
    assert place(str(prefix / "bin" / "codex")) == {"program": "/agent/bin/codex", "code": str(prefix)}
    assert place(script) == {"script": script, "python": f"{tmp_path}/env/bin/python3"}
    assert place("/usr/bin/env") == {"program": "/usr/bin/env"}


@pytest.mark.parametrize("found", ["/root/.local/bin/aider", "/root/bin/aider", "/etc/aider"])
def test_a_program_beside_which_a_jail_would_show_other_things_is_refused(found: str) -> None:
    with pytest.raises(BadProgram, match="install it into a directory of its own"):
        find_root(found, found)


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [("#!/usr/bin/env -S sh -e", "sh"), ("#! /opt/python3 -u", "/opt/python3"), ("ELF", ""), ("", "")],
)
def test_the_interpreter_of_a_script_is_read(tmp_path: Path, first: str, interpreter: str) -> None:
    assert read_interpreter(make(tmp_path / "script", f"{first}\nmore")) == interpreter
