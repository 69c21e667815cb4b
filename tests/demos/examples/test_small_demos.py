"""hello, spawn_test, worker and ipc: what their output promises is what happened."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.demos.conftest import ROOT, Run, left_nothing, processes_of
from tests.support.kernel import Kernel, until


def test_hello_spawns_an_agent_that_echoes_from_its_jail(run: Run) -> None:
    shown = run("hello")

    assert "hello | the kernel echoes: hello from the other side" in shown
    assert re.search(r"I am hello, agent \d+, in my jail process 2\n", shown)
    assert re.search(r"'isolation':\s+\{'level':\s+'standard', \.\.\.\}", shown)
    spawned = re.search(r"'name':\s+'hello',\s+'pid':\s+(\d+)", shown)
    assert spawned is not None
    assert f"The kernel knows it as process {spawned[1]};" in re.sub(r"\s+", " ", shown)


def test_spawn_test_shows_a_whole_life_and_every_refusal(run: Run) -> None:
    shown = run("spawn_test")

    assert "'paused': True" in shown
    assert "told to stop: goodbye" in re.sub(r"\s+", " ", shown)
    assert re.findall(r"'code':\s+'(\w+)'", shown) == [
        "not_found",
        "bad_request",
        "already_exists",
        "not_found",
        "unavailable",
    ]
    assert "No module named 'a_module_that_nobody_wrote'" in shown


def test_three_workers_in_three_jails_do_all_the_jobs(run: Run) -> None:
    shown = run("worker")

    results = re.findall(r"(worker-\d) in pid:\[(\d+)\]: +([\d,]+) primes below ([\d,]+)", shown)
    assert len(results) == 9
    assert ("664,579", "10,000,000") in [(primes, below) for _, _, primes, below in results]
    assert len({jail for _, jail, _, _ in results}) == len({(name, jail) for name, jail, _, _ in results}) == 3


def test_ipc_keeps_the_order_and_reaches_every_agent(run: Run) -> None:
    shown = re.sub(r"\s+", " ", run("ipc"))

    assert re.findall(r"'i_got': {'number': (\d)}", shown) == ["1", "2", "3"]
    assert "'delivered_count': 2" in shown
    for name in ("anna", "bert"):
        assert f"{{'from': '{name}', 'i_got': {{'news': 'the kettle is on'}}}}" in shown


def test_a_demo_talks_to_the_kernel_that_runs_already(run: Run, kernel: Kernel) -> None:
    shown = run("hello", "--socket", kernel.socket)

    assert "hello | the kernel echoes: hello from the other side" in shown
    assert "A kernel was started for this demo" not in shown
    kernel.wait_line(r"kernel \| hello: running")


def test_a_demo_without_a_kernel_at_the_socket_says_so_in_one_line(run: Run, place: Path) -> None:
    said = run("hello", "--socket", str(place / "nothing"), fails=True)

    assert said.strip() == f"no kernel at {place}/nothing: start one with `agentos run`"


def test_a_demo_whose_reader_leaves_stops_its_kernel_without_a_word(place: Path, environment: dict[str, str]) -> None:
    demo = [sys.executable, "-m", "demos.spawn_test"]

    with subprocess.Popen(demo, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""

    assert running.returncode == 128 + signal.SIGPIPE
    left_nothing(place)


def test_a_demo_that_is_killed_leaves_no_process(place: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "demos.supervision_tree"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as demo:
        until(lambda: any("agentos run" in line for line in processes_of(place)), "its kernel has been started")

        demo.kill()

    until(lambda: not processes_of(place), "the kernel and its agents have ended")
