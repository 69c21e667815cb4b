"""Metrics for Prometheus from a running kernel."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import OwnKernel
from tests.support.commands import run_agentos
from tests.support.kernel import Kernel, environment, shared, until
from tests.support.wire import NOOP, PATIENCE, READ, THINK
from tests.system.agents import as_agent, in_state, info, up
from tests.system.lives.test_containers import child
from tests.system.network.test_http import allow

OFFLINE = '[llm]\nprovider = "offline"\n[llm.prices]\noffline = { input = 1000, output = 1000 }\n'
TOKEN = "a-token-for-tests"


def find_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        number: int = held.getsockname()[1]
    return number


def serve(port: int, host: str = "127.0.0.1", more: str = "") -> str:
    return f'[metrics]\nlisten = "{host}:{port}"\n{more}{OFFLINE}'


def get(port: int, path: str = "/metrics", **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        text: str = response.read().decode()
    return text


def scrape(port: int) -> dict[tuple[str, ...], float]:
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(get(port))
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def status(port: int, path: str = "/metrics", **headers: str) -> int:
    try:
        get(port, path, **headers)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


@pytest.fixture(scope="module")
def served(kernels: None) -> Iterator[tuple[Kernel, int]]:
    """A kernel, and the port at which it serves its metrics."""
    broken = child("broken", '["sh", "-c", "sleep 1; exit 3"]', "max_restarts = 0")
    port = find_port()
    with shared(serve(port) + child("worker") + broken) as kernel:
        yield kernel, port


@pytest.fixture
def kernel(served: tuple[Kernel, int]) -> Kernel:
    return served[0]


@pytest.fixture
def port(served: tuple[Kernel, int]) -> int:
    return served[1]


def test_counters_survive_an_agents_restart(kernel: Kernel, port: int) -> None:
    with kernel.client() as client:
        number = info(client, "worker")["id"]

        def work() -> None:
            with kernel.connect_as(number) as wire:
                assert wire.call(THINK, {"prompt": "how?"})["success"]
                assert not wire.call(READ, {"path": "/etc/shadow"})["success"]
                assert wire.ask(NOOP, b"x").body == b"x"

        work()
        before = scrape_later(port, ("agentos_calls_total", "worker", "NOOP", "ok"), 1)
        os.kill(info(client, "worker")["pid"], signal.SIGKILL)
        until(lambda: info(client, "worker")["restarts"] == 1, "a restart")
        in_state(client, "worker", "running")
        work()
        after = scrape_later(port, ("agentos_calls_total", "worker", "NOOP", "ok"), 2)

        assert before["agentos_calls_total", "worker", "THINK", "ok"] == 1
        assert after["agentos_calls_total", "worker", "THINK", "ok"] == 2
        assert after["agentos_agent_starts_total", "worker"] == 2
        tokens = ("agentos_think_tokens_total", "worker", "offline", "output")
        assert after[tokens] > before[tokens] > 0
        assert after["agentos_think_calls_total", "worker", "offline"] == 2
        assert after["agentos_think_cost_total", "worker", "offline"] > 0
        codes = {key[3] for key in after if key[:3] == ("agentos_calls_total", "worker", "READ")}
        assert len(codes) == 1
        assert "ok" not in codes


def scrape_later(port: int, key: tuple[str, ...], value: float) -> dict[tuple[str, ...], float]:
    """Scrape until a sample has the value: a text is up to a second old."""
    found: dict[tuple[str, ...], float] = {}

    def look() -> bool:
        found.update(scrape(port))
        return found.get(key) == value

    until(look, f"{key} = {value}")
    return found


def test_an_agent_that_was_given_up_is_counted_as_failed(kernel: Kernel, port: int) -> None:
    with kernel.client() as client:
        in_state(client, "broken", "failed")
        found = scrape_later(port, ("agentos_agents", "failed"), 1)
        assert found["agentos_agent_running", "broken"] == 0
        assert found["agentos_agent_starts_total", "broken"] == 1


def test_an_ended_agents_counters_go_on_with_the_next_one_of_its_name(kernel: Kernel, port: int) -> None:
    with kernel.client() as client:
        for times in (1, 2):
            number = up(client.spawn("brief", command=["sleep", "1000"]))["id"]
            with kernel.connect_as(number) as wire:
                assert wire.ask(NOOP, b"x").body == b"x"
            client.kill(agent_id=number, grace=0)
            in_state(client, "brief", "exited")
            scrape_later(port, ("agentos_calls_total", "brief", "NOOP", "ok"), times)


def test_the_port_is_refused_to_agents(kernel: Kernel, port: int) -> None:
    with kernel.client() as client:
        number = up(client.spawn("subject", command=["sleep", "1000"]))["id"]
        allow(client, number, f"127.0.0.1:{port}", f"localhost:{port}")
        with as_agent(kernel, number) as subject:
            for host in ("127.0.0.1", "localhost"):
                reply = subject.http(f"http://{host}:{port}/metrics")
                assert reply["code"] == "permission_denied"
                assert "the kernel's own" in reply["error"]


def test_requests_need_the_token_if_there_is_one(own_kernel: OwnKernel, tmp_path: Path) -> None:
    port = find_port()
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    own_kernel(serve(port, "0.0.0.0", f'token_from = "file:{file}"\n'))

    assert status(port) == 401
    assert status(port, Authorization=f"Bearer {TOKEN}x") == 401
    assert status(port, Authorization=f"Basic {TOKEN}") == 401
    assert status(port, Authorization="Bearer \xff") == 401
    assert status(port, Authorization=f"bearer {TOKEN}") == 200
    assert status(port, "/", Authorization=f"Bearer {TOKEN}") == 404


def test_many_scrapes_at_once_hold_up_nothing(kernel: Kernel, port: int) -> None:
    with kernel.client() as client, ThreadPoolExecutor(40) as threads:
        for number in range(5):
            up(client.spawn(f"a{number}", command=["sleep", "1000"]))
        texts = [threads.submit(get, port) for _ in range(100)]
        with kernel.connect() as wire:
            assert wire.ask(NOOP, b"x").body == b"x"
        assert all("agentos_calls_total" in text.result() for text in texts)


def test_openmetrics_and_other_requests(port: int) -> None:
    assert get(port, Accept="application/openmetrics-text; version=1.0.0").endswith("# EOF\n")
    assert status(port, "/other") == 404
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 405")


def test_grafanas_dashboard_asks_only_for_metrics_that_are_served(port: int) -> None:
    dashboard = json.loads((Path(__file__).parents[3] / "docs/grafana/agentos.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]

    served = set(re.findall(r"^# TYPE (\w+) ", get(port), re.MULTILINE))
    named = {query: set(re.findall(r"\bagentos_\w+", query)) for query in queries}

    assert len(queries) > 15
    assert [query for query, names in named.items() if not names] == []
    assert {name for names in named.values() for name in names} - served == set()


def test_the_how_to_describes_every_metric_that_is_served(port: int) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/watch-with-prometheus.md").read_text()
    rows = "\n".join(line for line in page.split("\n") if line.startswith("| `agentos_"))

    assert set(re.findall(r"`(agentos_\w+)`", rows)) == set(re.findall(r"^# TYPE (\w+) ", get(port), re.MULTILINE))


def test_a_kernel_whose_port_is_taken_does_not_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        ended = run(tmp_path, serve(port))

    assert ended.returncode == 1
    assert f"can't listen on 127.0.0.1:{port} for [metrics]: Address already in use" in ended.stderr


def test_a_kernel_whose_token_is_unreadable_does_not_start(tmp_path: Path) -> None:
    ended = run(tmp_path, serve(find_port(), more='token_from = "env:NO_SUCH"\n'))

    assert ended.returncode == 1
    assert "[metrics] token_from: the kernel's environment has no variable NO_SUCH" in ended.stderr


def test_a_kernel_without_the_library_names_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "agentos.toml").write_text(serve(find_port()))
    code = "import sys; sys.modules['prometheus_client'] = None; from agentos.__main__ import main; main()"
    words = ["run", "--socket", str(tmp_path / "s"), "--state-dir", str(tmp_path / "state")]
    command, env = [sys.executable, "-c", code, *words], environment(tmp_path)
    ended = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )

    assert ended.returncode == 1
    assert "pip install '.[prometheus]' in AgentOS's repository" in ended.stderr


def run(place: Path, toml: str) -> subprocess.CompletedProcess[str]:
    (place / "agentos.toml").write_text(toml)
    words = ["run", "--socket", str(place / "s"), "--state-dir", str(place / "state")]
    return run_agentos(words, place, environment(place))


def test_the_libraries_are_loaded_only_if_they_are_asked_for() -> None:
    names = "('prometheus', 'opentelemetry')"
    code = f"import sys, agentos.boot.run; sys.exit(any(name.startswith({names}) for name in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False).returncode == 0
