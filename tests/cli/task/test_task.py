"""``agentos task`` and ``agentos tasks`` with a real kernel and the offline provider, also in a terminal."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentos.userland.cli.approvals.desk import SETTLE_SECONDS
from agentos.userland.task.running import RunningTask
from agentos_sdk import AgentOSClient
from agentos_sdk.errors import AgentOSError
from agentos_sdk.loop import AgenticLoop, TaskResult
from agentos_sdk.loop.blocking_driver import BlockingDriver
from agentos_sdk.loop.engine.driving import next_task_name
from tests.cli.conftest import Agentos
from tests.cli.terminal import Terminal
from tests.support.kernel import Kernel, shared, until
from tests.support.wire import PATIENCE

CONFIG = """
[llm]
provider = "offline"

[llm.offline]
rules = "answers.toml"
per_output = "1ms"
"""
HELLO = "print('hello')\n"
WRITTEN = {"path": "hello.py", "content": HELLO}
CHANGES = (
    "echo new > changed.txt; rm removed.txt; mkdir d; echo x > d/added.txt; rm -r inner; ln -s $(cat place) inner; "
    "chmod 600 mode.txt; echo changed"
)
FORGE = """
from agentos import AgentOSClient
kernel = AgentOSClient()
[name] = {key.split("/")[1] for key in kernel.keys("task/", "agent")["keys"]}
kernel.store(f"task/{name}/end", %r, "agent")
"""
NAME = "x\n\x1b[31mFAKE approval: y"
FORGED = TaskResult("done", "", "other", NAME, 1, 10**15)._asdict()


def forge(end: dict[str, Any]) -> str:
    """A command that stores a record of the end of its agent's task."""
    return f"echo {b64encode((FORGE % end).encode()).decode()} | base64 -d | python3"


RULES: list[dict[str, Any]] = [
    {"match": "^Forge a result", "tool_calls": [("exec", {"command": forge(FORGED)})]},
    {"match": "^Forge a record", "tool_calls": [("exec", {"command": forge({"x": 1})})]},
    {"match": "^Greet", "reply": "I write it first.", "tool_calls": [("write_file", WRITTEN)]},
    {"tool": "write_file", "match": "wrote", "tool_calls": [("exec", {"command": "python3 hello.py"})]},
    {"tool": "exec", "match": "^hello", "tool_calls": [("done", {"summary": "hello.py prints hello."})]},
    {"match": "^Change", "tool_calls": [("exec", {"command": CHANGES})]},
    {"tool": "exec", "match": "^changed", "tool_calls": [("done", {"summary": "all is changed"})]},
    {"match": r"^(Show [^\n]+)\n\n\(Images", "tool_calls": [("done", {"summary": r"shown: \1"})]},
    {"match": "^Summarise this work", "reply": "All was changed, and restored."},
    {"match": "^Fly", "tool_calls": [("done", {"summary": "agents can't fly", "success": False})]},
    {"match": "^(Talk|No tool was called)", "reply": "I only talk."},
    {"match": "^Wait", "tool_calls": [("exec", {"command": "echo > began; sleep 2; echo waited"})]},
    {"tool": "exec", "match": "^waited", "tool_calls": [("done", {"summary": "waited"})]},
    {"match": "^Nap", "tool_calls": [("exec", {"command": "sleep 5"})]},
    {"match": "^Sleep", "tool_calls": [("exec", {"command": "echo > began; sleep 1000"})]},
    {"match": "^The user says:\\s+Write", "tool_calls": [("exec", {"command": "echo > changed.txt; echo changed"})]},
    {"match": r"^The user says:\s+(.*)", "tool_calls": [("done", {"summary": r"told: \1"})]},
    {"match": r"(?s)AGENTS\.md.*<AGENTS.md>\s(.*)\s</AGENTS.md>", "tool_calls": [("done", {"summary": r"notes: \1"})]},
]  # fmt: skip


def to_toml(rule: Mapping[str, Any]) -> str:
    """A rule of the offline provider; strings, numbers and truth values of JSON are TOML, too."""
    calls = [
        f"{{ name = {json.dumps(name)}, arguments = {{ "
        + ", ".join(f"{key} = {json.dumps(value)}" for key, value in given.items())
        + " } }"
        for name, given in rule.get("tool_calls", ())
    ]
    lines = [f"{key} = {json.dumps(value)}" for key, value in rule.items() if key != "tool_calls"]
    return "\n".join(["[[rule]]", *lines, *([f"tool_calls = [{', '.join(calls)}]"] if calls else [])])


def configure(rules: Sequence[Mapping[str, Any]], directory: Path) -> str:
    """A configuration whose model answers by these rules, which are written into the directory."""
    (directory / "answers.toml").write_text("\n\n".join(map(to_toml, rules)))
    return CONFIG.replace("answers.toml", str(directory / "answers.toml"))


@pytest.fixture(scope="module")
def kernel(kernels: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with shared(configure(RULES, tmp_path_factory.mktemp("rules"))) as started:
        yield started


@pytest.fixture
def directory(entered: Path) -> Path:
    """A directory with files, and one beside it that no task may touch."""
    place = entered / "work"
    (place / "inner").mkdir(parents=True)
    for name in ("changed.txt", "removed.txt", "mode.txt", "inner/file"):
        (place / name).write_text(f"{name} as it was\n")
    (place / "link").symlink_to("changed.txt")
    outside = entered / "outside"
    outside.mkdir()
    (outside / "file").write_text("outside\n")
    (place / "place").write_text(str(outside))
    return place


def tree(place: Path) -> dict[str, tuple[int, str]]:
    """Mode, and content or target, by path."""
    found = {}
    for path in sorted(place.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found[str(path.relative_to(place))] = (path.lstat().st_mode, content)
    return found


def name_of(shown: str) -> str:
    return [*re.finditer(r"\btask-[0-9]+", shown)][-1].group()


def test_a_task_shows_its_steps_and_ends_with_what_was_changed_and_run(agentos: Agentos, directory: Path) -> None:
    done = agentos("task", "Greet", "--dir", str(directory))

    name = name_of(done.stdout)
    assert done.returncode == 0, done
    assert not (directory / "hello.py").exists()
    assert done.stdout.splitlines()[:6] == [
        *("» I write it first.", "● write_file hello.py", "  wrote 15 bytes to hello.py"),
        *("● exec python3 hello.py", "  hello", "» hello.py prints hello."),
    ]
    for part in (f"1 change waits, and {directory} is as it was:\n", "  A hello.py\n", "  $ python3 hello.py\n"):
        assert part in done.stdout
    assert f"`agentos apply {name}` makes them" in done.stdout
    assert agentos("apply", name, "--yes").returncode == 0
    assert (directory / "hello.py").read_text() == HELLO
    listed = agentos("tasks").stdout.splitlines()
    assert listed[1].split()[:2] == [name, "done"]


def test_a_task_that_forges_its_end_is_listed_by_its_own_name(agentos: Agentos) -> None:
    result, record = agentos("task", "Forge a result"), agentos("task", "Forge a record")

    listed = {each["text"]: each for each in json.loads(agentos("tasks", "--json").stdout)}
    name = listed["Forge a result"]["name"]
    assert (listed["Forge a result"]["status"], listed["Forge a record"]["status"]) == ("done", "failed")
    assert f"\n{name}: done (1 step, 1,000,000,000,000,000 tokens)\n" in result.stdout
    assert "FAKE" not in result.stdout
    assert "the record of the task's end is no result: something else has stored it" in record.stderr
    assert agentos("tasks").returncode == 0


def test_a_forged_use_enlarges_no_budget_beyond_twice_what_it_was(agentos: Agentos, kernel: Kernel) -> None:
    agentos("task", "Forge a result that used much", "--budget", "tokens=20000")
    name = json.loads(agentos("tasks", "--json").stdout)[0]["name"]

    agentos("task", "--resume", name, "Fly", "--budget", "tokens=1000")

    with kernel.client() as client:
        [budget] = client.fetch(f"task-spawn/{name}", "agent")["value"]["llm"]["budget"]
    assert budget["tokens"] == 1000 + 2 * 20000


def test_what_a_task_changes_waits_and_is_applied_undone_and_thrown_away(agentos: Agentos, directory: Path) -> None:
    before = tree(directory)
    done = agentos("task", "Change", "--dir", str(directory))
    name = name_of(done.stdout)
    for line in ("M changed.txt", "D removed.txt", "A d/added.txt", "T inner", "D inner/file", "M mode.txt"):
        assert f"  {line}" in done.stdout, done
    assert tree(directory) == before

    applied = agentos("apply", name, "--yes")
    assert (applied.returncode, tree(directory)["changed.txt"][1]) == (3, "new\n"), applied
    assert "inner: a link that leads out of the directory" in applied.stdout
    (directory / "mode.txt").write_text("mine\n")
    undone = agentos("undo", name)
    thrown = agentos("rollback", f"{name}@start")

    assert undone.returncode == 3, undone
    assert {**tree(directory), "mode.txt": before["mode.txt"]} == before
    assert (directory / "mode.txt").read_text() == "mine\n"
    assert (directory.parent / "outside" / "file").read_text() == "outside\n"
    assert thrown.returncode == 0
    assert agentos("diff", name).stdout == "no changes\n"


def test_in_place_a_task_changes_the_directory_and_says_so_before(agentos: Agentos, directory: Path) -> None:
    done = agentos("task", "Greet", "--dir", str(directory), "--in-place")

    said = " ".join(done.stderr.split())
    assert f"{directory} itself is changed, at once, and nothing of it can be undone" in said
    assert f"{directory} is in no git repository" in said
    assert ("agentos apply" in done.stdout, (directory / "hello.py").read_text()) == (False, HELLO)


def test_a_task_goes_on_with_its_changes_whatever_was_changed_in_the_directory(
    agentos: Agentos, directory: Path
) -> None:
    name = name_of(agentos("task", "Change", "--dir", str(directory)).stdout)
    (directory / "mine.txt").write_text("mine\n")

    done = agentos("task", "--resume", name, "Write", "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    changes = {each["path"]: each["change"] for each in result["changes"]}
    assert (done.returncode, changes["changed.txt"], changes["removed.txt"]) == (0, "changed", "deleted"), done
    assert "mine.txt" not in changes
    shown = agentos("diff", name, "changed.txt").stdout
    assert "-changed.txt as it was\n" in shown
    assert f"is as it was: `agentos diff {name}` shows the changes" in " ".join(done.stderr.split())


def test_two_tasks_work_on_one_directory(kernel: Kernel, agentos: Agentos, directory: Path) -> None:
    waits = json.loads(agentos("task", "--ask", "--json", "Greet", "--dir", str(directory)).stdout.splitlines()[-1])

    beside = agentos("task", "Greet", "--dir", str(directory))

    assert beside.returncode == 0, beside
    with kernel.client() as client:
        client.kill(name=waits["task"])


@pytest.mark.parametrize("options", [["-p"], ["--json"]])
def test_a_script_is_told_that_changes_wait(agentos: Agentos, directory: Path, options: list[str]) -> None:
    before = tree(directory)

    done = agentos("task", "Change", "--dir", str(directory), *options)

    assert (done.returncode, tree(directory)) == (0, before)
    assert f"{directory} is as it was: `agentos diff task-" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "status"), [(["Fly"], 1), (["Greet", "--budget", "iterations=1"], 2)], ids=["failed", "budget"]
)
def test_the_exit_status_says_how_a_task_has_ended(agentos: Agentos, arguments: list[str], status: int) -> None:
    assert agentos("task", *arguments).returncode == status


def test_the_last_text_of_a_model_that_calls_no_tool_is_shown_once(agentos: Agentos) -> None:
    shown, piped = agentos("task", "Talk"), agentos("task", "-p", "Talk")

    assert shown.stdout.splitlines()[:3] == ["» I only talk."] * 3
    assert "I only talk." not in "".join(shown.stdout.splitlines()[3:])
    assert (shown.returncode, piped.returncode, piped.stdout) == (1, 1, "I only talk.\n")


def test_a_call_without_an_approver_here_ends_the_command_and_the_task_is_resumed(agentos: Agentos) -> None:
    waits = agentos("task", "--ask", "--json", "Greet")
    waiting = json.loads(waits.stdout.splitlines()[-1])
    name, number = waiting["task"], waiting["request"]["id"]
    listed = {each["name"]: each["status"] for each in json.loads(agentos("tasks", "--json").stdout)}
    agentos("approve", str(number), "--remember", "always")
    again = agentos("task", "--resume", name, "--json")
    agentos("approve", str(json.loads(again.stdout.splitlines()[-1])["request"]["id"]))

    done = agentos("task", "--resume", name, "--json")

    result = json.loads(done.stdout.splitlines()[-1])
    assert (waits.returncode, again.returncode, done.returncode) == (3, 3, 0)
    assert (waiting["kind"], listed[name]) == ("waiting", "running")
    assert (result["kind"], result["status"], result["commands"]) == ("result", "done", ["python3 hello.py"])


def test_a_task_of_a_version_before_overlays_is_listed_and_does_not_go_on(agentos: Agentos, kernel: Kernel) -> None:
    note = {"name": "task-900", "text": "old", "directory": "/old", "saved": "/copies", "at": 0.0}
    with AgentOSClient(kernel.socket) as client:
        client.store("task-note/task-900", note, scope="agent")
        try:
            listed = {each["name"]: each["text"] for each in json.loads(agentos("tasks", "--json").stdout)}
            again = agentos("task", "--resume", "task-900", "go on")
        finally:
            client.delete("task-note/task-900", "agent")

    assert listed["task-900"] == "old"
    assert (again.returncode, "begin a new task" in again.stderr) == (1, True)


def test_a_task_goes_on_with_what_is_said_after_its_end(agentos: Agentos) -> None:
    first = agentos("task", "-p", "Greet")
    then = agentos("task", "--continue", "-p", "add a test")

    assert (first.stdout, then.stdout) == ("hello.py prints hello.\n", "told: add a test\n")


def test_agents_md_is_given_as_data_and_a_link_is_not_followed(agentos: Agentos, directory: Path) -> None:
    (directory / "AGENTS.md").write_text("Use tabs.\n")
    told = agentos("task", "-p", "Look", "--dir", str(directory))
    (directory / "AGENTS.md").unlink()
    (directory / "AGENTS.md").symlink_to(directory.parent / "outside" / "file")
    linked = agentos("task", "-p", "Fly", "--dir", str(directory))

    assert told.stdout == "notes: Use tabs.\n"
    assert "AGENTS.md is not read: a symbolic link" in linked.stderr


def test_an_image_is_named_by_its_path_in_the_directory(agentos: Agentos, directory: Path) -> None:
    (directory / "inner" / "plot.png").write_bytes(b"\x89PNG and more")
    asked = agentos("task", "-p", "Show @inner/plot.png", "--dir", str(directory))
    assert asked.stdout == "shown: Show inner/plot.png\n"

    outside = directory.parent / "outside/x.png"
    outside.write_bytes(b"\x89PNG")
    (directory / "inner/text.png").write_text("text")
    for path, why in (
        ("none.png", "@none.png: no such file"),
        (str(outside), "copy it there"),
        ("inner/text.png", "expected an image: JPEG"),
    ):
        refused = agentos("task", f"Show @{path}", "--dir", str(directory))
        assert (refused.returncode, why in " ".join(refused.stderr.split())) == (1, True), refused.stderr
    assert "give --dir" in agentos("task", "Show @inner/plot.png").stderr


def test_before_a_task_in_place_changes_that_are_not_committed_are_said(agentos: Agentos, directory: Path) -> None:
    subprocess.run(["git", "init", "-q", str(directory)], check=True)

    told = agentos("task", "-p", "Fly", "--dir", str(directory), "--in-place")

    assert f"{directory} has changes that aren't committed, in 6 places: " in told.stderr


def test_mistakes_are_named_and_leave_no_task(agentos: Agentos) -> None:
    mistakes = [
        (["Greet", "--budget", "coins=3"], "budget: expected iterations, tokens, money, time, got 'coins'"),
        (["Greet", "--dir", "/nowhere"], "/nowhere: no such directory"),
        (["Greet", "--dir", "/"], "/: this is the whole host"),
        (["undo", "task-999"], "TEXT: expected one argument"),
        (["--resume", "task-999"], "there is no task 'task-999'"),
        (["Greet", "--resume", "task-1", "--ask"], "--resume and --continue keep"),
        (["Greet", "--in-place"], "give --dir, and no --review"),
        (["Greet", "--dir", ".", "--review", "-p"], "without -p and --json"),
        (["two", "words"], "write the task in quotation marks"),
        (["Greet", "--dir", "/etc/skel"], "a directory of the system's"),
        (["Greet", "--level", "nosuch"], "nosuch"),
    ]
    before = agentos("tasks").stdout

    for arguments, error in mistakes:
        done = agentos("task", *arguments)
        assert (done.returncode in (1, 2), error in " ".join(done.stderr.split())) == (True, True), (arguments, done)

    assert agentos("tasks").stdout == before


def test_a_review_without_a_terminal_changes_nothing(agentos: Agentos, directory: Path) -> None:
    before = tree(directory)

    done = agentos("task", "Change", "--dir", str(directory), "--review")

    assert done.returncode == 3, done
    for line in ("-changed.txt as it was", "+new", "+x"):
        assert f"\n{line}\n" in done.stdout
    assert tree(directory) == before


@pytest.mark.parametrize(
    ("end", "text", "status"), [(RunningTask.stop, "Nap", "stopped"), (RunningTask.kill, "Sleep", "failed")]
)
def test_a_task_is_ended_although_its_agent_is_not_spawned_yet(
    kernel: Kernel, end: Callable[[RunningTask], None], text: str, status: str
) -> None:
    may_begin, refused = threading.Event(), threading.Event()

    class Task(RunningTask):
        def _repeat(self, request: Callable[[], None]) -> None:
            def noted() -> None:
                try:
                    request()
                except AgentOSError:
                    refused.set()
                    raise

            super()._repeat(noted)

    def work(client: AgentOSClient, running: RunningTask) -> TaskResult:
        assert may_begin.wait(PATIENCE)
        return AgenticLoop(client, on_step=running.note).run(text, task_id=name)

    with kernel.client() as client:
        name = BlockingDriver(client).run(next_task_name())
    task = Task(kernel.socket, name, work)
    task.start()
    end(task)
    assert refused.wait(PATIENCE), "there is no such agent yet"
    may_begin.set()
    until(lambda: task.is_over, "the task is over")

    assert (task.result.status if task.result is not None else "failed") == status  # without a result it didn't start


# -- In a terminal -----------------------------------------------------------------------------------------------------


def test_keys_answer_approvals_while_nothing_is_typed_and_lines_steer(kernel: Kernel) -> None:
    terminal = Terminal(kernel, "task", "--ask", "Greet")
    terminal.wait_for("+│ print('hello')")
    time.sleep(SETTLE_SECONDS + 0.3)
    terminal.type("y")
    since = terminal.wait_for("$ │ python3 hello.py")
    time.sleep(SETTLE_SECONDS + 0.3)
    terminal.type("Why y and n?")
    terminal.wait_for("> Why y and n?", since - 500)
    terminal.type("\n")
    terminal.wait_for("it is told before its next step: Why y and n?")
    terminal.type("y")

    terminal.wait_for("told: Why y and n?")
    assert terminal.end() == 0
    assert "denied" not in terminal.shown
    terminal.close()


def test_a_reviewed_change_is_applied_after_a_y_unless_the_file_has_changed_meanwhile(
    kernel: Kernel, directory: Path
) -> None:
    terminal = Terminal(kernel, "task", "Change", "--dir", str(directory), "--review")
    terminal.wait_for("apply these changes?")
    (directory / "removed.txt").write_text("mine\n")
    terminal.type("y\n")
    terminal.wait_for("left: removed.txt: the host has changed it")

    assert terminal.end() == 3
    assert (directory / "changed.txt").read_text() == "new\n"
    assert (directory / "removed.txt").read_text() == "mine\n"
    assert (directory / "mode.txt").stat().st_mode & 0o7777 == 0o600
    terminal.close()


def test_a_conversation_is_one_task_with_commands(kernel: Kernel, directory: Path) -> None:
    terminal = Terminal(kernel, "task", "--dir", str(directory))
    terminal.wait_for("/quit\r\n> ")
    terminal.type("Change\n")
    since = terminal.wait_for("1 command run:")
    terminal.type("/apply\n")
    since = terminal.wait_for("look first: /diff", since)
    terminal.type("/diff\n")
    since = terminal.wait_for("-changed.txt as it was", since)
    terminal.type("/apply\n")
    since = terminal.wait_for("takes it back)", since)
    assert (directory / "changed.txt").read_text() == "new\n"
    terminal.type("/undo\n")
    since = terminal.wait_for("undone", since)
    assert (directory / "changed.txt").read_text() == "changed.txt as it was\n"
    terminal.type("/discard\n")
    since = terminal.wait_for("goes on with the directory as it is", since)
    terminal.type("/cost\n")
    terminal.wait_for(": 2 steps, ", since)
    terminal.type("go on\n")
    terminal.wait_for("told: The user has taken back changes of yours: look at the files again. go on", since)
    terminal.wait_for(": done (3 steps, ", since)
    terminal.wait_for("no file was changed", since)
    terminal.type("/compact\n")
    terminal.wait_for("gets a summary of all but the first task", since)
    terminal.type("more\n")
    terminal.wait_for("» of the conversation about ", since)
    terminal.wait_for("told: more", since)
    terminal.wait_for(": done (4 steps, ", since)
    terminal.type("/quit\n")

    assert terminal.end() == 0
    terminal.close()


def test_ctrl_c_stops_after_the_step_and_the_task_can_be_resumed(
    kernel: Kernel, agentos: Agentos, directory: Path
) -> None:
    terminal = Terminal(kernel, "task", "Wait", "--dir", str(directory), "--in-place")
    until((directory / "began").exists, "the command has begun")
    terminal.type("\x03")
    terminal.wait_for("it stops after this step")

    assert terminal.end() == 130, terminal.shown
    name = name_of(terminal.shown)
    terminal.close()
    assert "  waited" in terminal.shown
    resumed = agentos("task", "--resume", name)
    assert (resumed.returncode, resumed.stdout.splitlines()[0]) == (0, "» waited")


def test_ctrl_c_at_a_request_refuses_it_and_the_keys_after_it_allow_nothing(kernel: Kernel, directory: Path) -> None:
    terminal = Terminal(kernel, "task", "--ask", "Greet", "--dir", str(directory))
    terminal.wait_for("a always")
    terminal.type("\x03aaaa")

    assert terminal.end() == 130, terminal.shown
    terminal.close()
    assert not (directory / "hello.py").exists()


def test_a_task_goes_on_after_its_kernel_was_killed(kernel: Kernel, agentos: Agentos, directory: Path) -> None:
    terminal = Terminal(kernel, "task", "Wait", "--dir", str(directory), "--in-place")
    until((directory / "began").exists, "the command has begun")
    kernel.kill()
    assert terminal.end() == 1
    name = name_of(terminal.shown)
    terminal.wait_for(f"`agentos task --resume {name}` goes on")
    terminal.close()
    (directory / "began").unlink()
    kernel.start_again()

    done = agentos("task", "--resume", name)

    assert not (directory / "began").exists(), "the command was run again"
    assert "The kernel or the agent stopped" in done.stdout


def test_a_second_ctrl_c_ends_the_agent(kernel: Kernel, program: str, directory: Path) -> None:
    process = subprocess.Popen(
        [program, "task", "Sleep", "--dir", str(directory), "--in-place", "--socket", kernel.socket],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until((directory / "began").exists, "the command has begun")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    while "it stops after this step" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130, shown
    with kernel.client() as client:
        assert client.inspect(name_of(shown))["state"] not in ("running", "starting")
