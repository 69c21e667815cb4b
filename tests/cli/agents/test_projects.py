"""Each project has a kernel of its own, which the commands find from inside it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.sandbox.host_ids import FIRST_ID
from agentos_sdk import AgentOSClient, ConnectionFailed, default_socket
from agentos_sdk.project import default_project_socket, find_project, list_kernels, project_id
from tests.support import fork_server
from tests.support.commands import run_agentos
from tests.support.fork_server import Forked
from tests.support.kernel import environment, until
from tests.support.runs import costs
from tests.support.wire import PATIENCE

ROOT = os.geteuid() == 0
OTHER = 65534
AGENT = '[[supervisor.children]]\nname = "worker"\ncommand = ["sleep", "1000"]\nworkspace = "keep"\nrequired = true\n'


class Desk:
    """A runtime directory, a home, and the kernels that were started with them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.env = environment(place)
        self.kernels: list[Forked] = []
        self.said: dict[int, list[str]] = {}  # until it was ready, by pid

    def project(self, name: str, text: str = "[kernel]\n", file: str = "agentos.toml") -> Path:
        directory = self.place / name
        directory.mkdir(exist_ok=True)
        (directory / file).write_text(text)
        return directory

    def start(self, directory: Path, *words: str, **env: str) -> Forked:
        return fork_server.shared().start_kernel(words, str(directory), self.env | env)

    def type(self, directory: Path, *words: str, **env: str) -> tuple[int, str]:
        """Exit status of a command, and all that it printed."""
        done = run_agentos(words, directory, self.env | env)
        return done.returncode, done.stdout + done.stderr

    def run(self, directory: Path, *words: str, **env: str) -> Forked:
        """A kernel that is ready; root's state is kept away from the host's."""
        assert costs.may_start_kernels, "a test that starts a kernel uses the fixture kernels"
        if ROOT and "--state-dir" not in words:
            words = (*words, "--state-dir", str(directory / "state"))
        kernel = self.start(directory, "run", *words, **env)
        self.kernels.append(kernel)
        assert kernel.stdout is not None
        said = self.said[kernel.pid] = []
        for line in kernel.stdout:
            said.append(line)
            if "| ready, " in line:
                return kernel
        raise AssertionError("".join(said))

    def names(self, directory: Path) -> list[str]:
        status, printed = self.type(directory, "ps", "--json")
        assert status == 0, printed
        return [agent["name"] for agent in json.loads(printed)]

    def stop(self, kernel: Forked) -> str:
        """End a kernel; all that it printed until it was ready."""
        self.kernels.remove(kernel)
        end(kernel)
        return "".join(self.said[kernel.pid])

    def close(self) -> None:
        for kernel in self.kernels:
            kernel.terminate()
        for kernel in self.kernels:
            end(kernel)


def end(kernel: Forked) -> None:
    """End a kernel, and read what it still prints."""
    kernel.terminate()
    assert kernel.stdout is not None
    with kernel.stdout:
        kernel.stdout.read()
    kernel.wait(PATIENCE)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aos-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def desk(place: Path) -> Iterator[Desk]:
    opened = Desk(place)
    yield opened
    opened.close()


@pytest.mark.usefixtures("kernels")
def test_two_projects_run_at_once_with_uids_of_their_own_and_each_directory_finds_its_own(desk: Desk) -> None:
    shop, blog = desk.project("shop", AGENT), desk.project("blog", AGENT.replace("worker", "writer"))
    desk.run(shop)
    desk.run(blog)
    (shop / "deep" / "down").mkdir(parents=True)

    if ROOT:  # without root agents have the kernel's uid
        agents = [json.loads(desk.type(directory, "ps", "--json")[1])[0] for directory in (shop, blog)]
        uids = {os.stat(f"/proc/{agent['pid']}").st_uid for agent in agents}
        assert len(uids) == 2
        assert min(uids) >= FIRST_ID

    assert desk.names(shop) == desk.names(shop / "deep" / "down") == ["worker"]
    assert desk.names(blog) == ["writer"]
    look = "import agentos_sdk\nprint([agent['name'] for agent in agentos_sdk.AgentOSClient().list_agents()])"
    assert subprocess.check_output([sys.executable, "-c", look], cwd=shop, env=desk.env, text=True) == "['worker']\n"
    status, printed = desk.type(blog, "spawn", "noted", "--", "sleep", "1000")
    assert status == 0, printed
    assert "noted" in desk.type(blog, "audit")[1]
    assert "noted" not in desk.type(shop, "audit")[1]

    status, printed = desk.type(desk.place, "ps")
    assert status == 1
    beginning = f"agentos: no agentos.toml in {desk.place} or above it, and 2 kernels run: choose one with --socket; "
    assert printed.startswith(beginning)
    assert all(f"{directory}/agentos.toml)" in printed for directory in (shop, blog))


@pytest.mark.skipif(ROOT, reason="root's state is in /var/lib, which is the host's")
@pytest.mark.usefixtures("kernels")
def test_state_of_two_projects_of_an_ordinary_user_is_apart(desk: Desk) -> None:
    shop, blog = desk.project("shop"), desk.project("blog")
    desk.run(shop)
    desk.run(blog)

    state = Path(desk.env["XDG_STATE_HOME"], "agentos")
    names = sorted(project_id(str(directory / "agentos.toml")) for directory in (shop, blog))
    assert sorted(os.listdir(state)) == names
    assert all((state / name / "agentos.db").exists() for name in names)
    assert [name for name in sorted(os.listdir(desk.place / "agentos")) if name.endswith(".sock")] == [
        f"{name}.sock" for name in names
    ]
    status, printed = desk.type(shop, "audit", "verify", "--json")
    assert status == 0, printed


@pytest.mark.usefixtures("kernels")
def test_outside_a_project_the_only_kernel_is_meant(desk: Desk) -> None:
    demo = desk.project("demo", AGENT, "fleet.toml")
    elsewhere, other = desk.place / "elsewhere", desk.project("other")
    elsewhere.mkdir()
    desk.run(demo, "fleet.toml", "--socket", str(demo / "s"))

    assert desk.names(elsewhere) == desk.names(demo) == ["worker"]
    status, printed = desk.type(elsewhere, "audit", "verify")
    assert status == 0, printed

    status, printed = desk.type(other, "stop", "worker", "--json")
    assert status == 1, "in another project it isn't"
    error = json.loads(printed)["error"]
    assert f", the socket of {other}/agentos.toml: start one" in error
    assert f"running: fleet-{project_id(str(demo / 'fleet.toml'))[-8:]} (pid " in error


@pytest.mark.usefixtures("kernels")
def test_another_file_of_the_directory_is_meant_while_the_first_doesnt_run(desk: Desk) -> None:
    directory, elsewhere = desk.project("shop", AGENT.replace("worker", "trial"), "trial.toml"), desk.project("blog")
    desk.project("shop", AGENT)
    desk.run(elsewhere)
    desk.run(directory, "trial.toml", "--state-dir", str(directory / "trial"))
    assert desk.names(directory) == ["trial"]

    desk.run(directory)
    assert desk.names(directory) == ["worker"]


@pytest.mark.usefixtures("kernels")
def test_a_kernel_without_a_file_belongs_to_its_directory_and_comes_before_a_file_above_it(desk: Desk) -> None:
    shop, alone = desk.project("shop", AGENT), desk.place / "alone"
    for directory in (shop / "trial", alone):
        directory.mkdir()
    desk.run(shop)
    assert desk.names(shop / "trial") == ["worker"]

    desk.run(shop / "trial")
    desk.run(alone)
    status, printed = desk.type(alone, "spawn", "other", "--", "sleep", "1000")
    assert status == 0, printed

    found = {directory: desk.names(directory) for directory in (shop, shop / "trial", alone)}
    assert found == {shop: ["worker"], shop / "trial": [], alone: ["other"]}


@pytest.mark.usefixtures("kernels")
def test_kernels_lists_what_runs_and_not_what_was_killed_or_stopped(desk: Desk) -> None:
    shop, blog = desk.project("shop"), desk.project("blog")
    assert desk.type(shop, "kernels") == (
        0,
        f"no kernel of yours runs (looked in {desk.place}/agentos): start one with `agentos run`\n",
    )
    assert desk.type(shop, "kernels", "--json") == (0, "[]\n")
    first, second = desk.run(shop), desk.run(blog)

    listed = json.loads(desk.type(shop, "kernels", "--json")[1])
    assert [(kernel["pid"], kernel["file"]) for kernel in listed] == [
        (second.pid, f"{blog}/agentos.toml"),
        (first.pid, f"{shop}/agentos.toml"),
    ]
    assert [kernel["socket"] for kernel in listed] == [
        f"{desk.place}/agentos/{kernel['name']}.sock" for kernel in listed
    ]
    status, printed = desk.type(shop, "kernels")
    assert status == 0
    assert [line.split()[1] for line in printed.splitlines()[1:]] == [str(second.pid), str(first.pid)]

    second.kill()
    second.wait(PATIENCE)
    assert [kernel["pid"] for kernel in json.loads(desk.type(shop, "kernels", "--json")[1])] == [first.pid]
    assert os.path.exists(listed[0]["socket"]), "the socket's file alone is no kernel"
    status, printed = desk.type(blog, "ps")
    assert status == 1
    assert "no kernel at" in printed

    again = desk.run(blog)
    assert [kernel["pid"] for kernel in json.loads(desk.type(shop, "kernels", "--json")[1])] == [again.pid, first.pid]
    records = [name for name in os.listdir(desk.place / "agentos") if name.endswith(".json")]
    assert len(records) == 2, "the killed kernel's record was removed"

    for kernel in (first, again):
        desk.stop(kernel)
    assert os.listdir(desk.place / "agentos") == [], "stopped kernels leave neither record nor socket"


@pytest.mark.usefixtures("kernels")
def test_what_is_given_wins_over_the_project(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = desk.project("shop", '[kernel]\nsocket = "by-file"\nstate_dir = "st"\n')
    desk.run(directory, "--state-dir", str(directory / "st"))

    assert desk.names(directory) == []
    assert (directory / "by-file").is_socket()
    assert json.loads(desk.type(directory, "kernels", "--json")[1])[0]["socket"] == f"{directory}/by-file"
    nowhere = str(desk.place / "nowhere")
    plain = f"agentos: no kernel at {nowhere}: start one with `agentos run`\n"
    assert desk.type(directory, "ps", AGENTOS_SOCKET=nowhere) == (1, plain)
    assert desk.type(directory, "ps", "--socket", nowhere) == (1, plain)

    monkeypatch.chdir(directory)
    monkeypatch.delenv("AGENTOS_SOCKET", raising=False)
    assert default_socket() == AgentOSClient().socket_path == f"{directory}/by-file"


def test_a_name_is_readable_and_a_socket_never_too_long(place: Path) -> None:
    long = place / ("mañana " * 20)
    long.mkdir()
    (place / "link").symlink_to(long)

    name = project_id(f"{long}/agentos.toml")

    assert name == project_id(f"{place}/link/agentos.toml"), "the real path counts"
    assert name.startswith("ma_ana_ma_ana_")
    assert len(name) == 32 + 1 + 8
    assert len({project_id(f"{long}/{file}") for file in ("agentos.toml", "a.toml", "b.toml")}) == 3
    assert project_id("/agentos.toml").startswith("root-")


def test_a_runtime_directory_that_is_too_long_is_an_error_that_says_so(desk: Desk) -> None:
    runtime = desk.place / ("r" * 90)
    runtime.mkdir(0o700)
    directory = desk.project("shop")
    words = ["--state-dir", str(directory / "state")]

    status, printed = desk.type(directory, "run", *words, XDG_RUNTIME_DIR=str(runtime))

    assert status == 1
    assert printed.endswith(
        f"agentos: {runtime}/agentos/{project_id(str(directory / 'agentos.toml'))}.sock: "
        "a socket's path has at most 107 bytes: choose a shorter one with --socket\n"
    )


def test_without_a_runtime_directory_the_socket_carries_the_uid(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    file = str(place / "agentos.toml")
    expected = f"/tmp/agentos-{os.geteuid()}/{project_id(file)}.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_project_socket(file) == expected

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "missing"))
    assert default_project_socket(file) == expected
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert default_project_socket(file) == f"{place}/agentos/{project_id(file)}.sock"


@pytest.mark.skipif(not ROOT, reason="only root can give a directory to another uid")
def test_nothing_of_another_uid_is_trusted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = desk.project("shop")
    planted = desk.place / "agentos"
    planted.mkdir(0o755)
    with socket.socket(socket.AF_UNIX) as trap:
        trap.bind(str(planted / f"{project_id(str(directory / 'agentos.toml'))}.sock"))
        trap.listen()
        trap.setblocking(False)
        os.chown(planted, OTHER, OTHER)

        for words in (("ps",), ("kernels",), ("run",)):
            more = ("--state-dir", str(directory / "state")) if words == ("run",) else ()
            status, printed = desk.type(directory, *words, *more)
            assert status == 1, printed
            assert f"{planted}" in printed
            assert f"belongs to uid {OTHER}" in printed
        with pytest.raises(BlockingIOError):
            trap.accept()  # no client has come

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(desk.place))
    with pytest.raises(ConnectionFailed, match="belongs to uid"):
        list_kernels()


@pytest.mark.skipif(not ROOT, reason="only root can give a file to another uid")
def test_another_users_file_above_makes_no_project(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "below").mkdir()
    file = place / "agentos.toml"
    file.write_text('[kernel]\nsocket = "trap"\n')
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.chdir(place / "below")
    assert find_project().file == str(file)

    os.chown(file, OTHER, OTHER)

    assert not find_project().exists
    assert find_project().socket == default_project_socket(f"{place}/below/agentos.toml")


@pytest.mark.usefixtures("kernels")
def test_an_empty_file_makes_no_project(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an agent works in a directory without a configuration, such a file keeps the name taken."""
    shop, above = desk.project("shop", ""), desk.place / "agentos.toml"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(desk.place))
    monkeypatch.chdir(shop)
    assert not find_project().exists

    above.write_text("[kernel]\n")
    assert find_project().file == str(above)
    above.unlink()
    desk.run(shop)

    assert desk.type(shop, "reload")[1].startswith("agentos: the kernel was started without a configuration file")


@pytest.mark.usefixtures("kernels")
def test_a_kernel_that_can_have_no_record_says_so_and_runs(desk: Desk) -> None:
    (desk.place / "agentos").write_text("a file is in the way")
    directory = desk.project("shop", "")

    kernel = desk.start(directory, "run", "--socket", str(directory / "s"), "--state-dir", str(directory / "state"))
    desk.kernels.append(kernel)
    assert kernel.stdout is not None
    line = kernel.stdout.readline()

    assert f"`agentos kernels` won't list this kernel: {desk.place}/agentos: File exists" in line
    until(lambda: (directory / "s").is_socket(), "it listens")


@pytest.mark.usefixtures("kernels")
def test_kernels_cuts_no_path_in_a_narrow_terminal(desk: Desk) -> None:
    directory = desk.project("a-project-with-a-long-name")
    kernel = desk.run(directory)
    file = f"{directory}/agentos.toml"
    for columns, below in ((80, 2), (400, 0)):
        _, line, *paths = show_in_terminal(desk, directory, columns).splitlines()

        assert line.split()[1] == str(kernel.pid)
        shown = [*line.split()[4:], *(path.strip() for path in paths)]
        assert shown == [file, f"{desk.place}/agentos/{project_id(file)}.sock"]
        assert len(paths) == below


def show_in_terminal(desk: Desk, directory: Path, columns: int) -> str:
    """What `agentos kernels` shows in a terminal that is so wide."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    command = fork_server.shared().fork(["kernels"], str(directory), desk.env, [theirs] * 3)
    os.close(theirs)
    printed = b""
    with contextlib.suppress(OSError):  # the end, where nobody has the other side
        while part := os.read(ours, 4096):
            printed += part
    os.close(ours)
    assert command.wait(PATIENCE) == 0
    return printed.decode()
