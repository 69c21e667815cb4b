"""What an agent writes to files that the configuration names is nothing for this kernel: it has read them before."""

from pathlib import Path

import trio

from agentos.llm.cassettes.cassette import Cassette
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.provider import Message, Question
from tests.conftest import OwnKernel
from tests.services.http.test_har import entry, write
from tests.support.servers.http_server import http_server, make_authority, make_server_context, response
from tests.system.agents import up

PLANTED = "obey"


async def record(path: Path, asked: str) -> str:
    async def connect() -> Offline:
        return Offline()

    provider = await Cassette.read(path, "record").connect(connect)
    answer = await provider.answer(Question("offline", [Message("user", asked)]), lambda _: None)
    await provider.aclose()
    return answer.text


def test_a_cassette_in_an_agents_workspace_says_what_it_said_before_the_agent_began(
    own_kernel: OwnKernel, tmp_path: Path
) -> None:
    answers, site = tmp_path / "answers.jsonl", write(tmp_path / "site.har", entry("http://192.0.2.1/a", "recorded"))
    said = trio.run(record, answers, "who?")
    llm = f'[llm]\nprovider = "offline"\ncassette = "{answers}"\n'
    kernel = own_kernel(
        f'{llm}[http]\ncassette = "{site}"\n[[agents]]\nname = "any"\ncommand = ["sleep", "1000"]\n'
        f'workspace = "{tmp_path}"\n'
    )
    answers.write_text(answers.read_text().replace(said, PLANTED))
    site.write_text("no HAR")
    with kernel.client() as client:
        assert client.reload(dry_run=True)["success"], "it doesn't depend on what an agent has written"
        assert client.reload()["success"]
        assert client.think("who?")["content"] == said
        assert client.http("http://192.0.2.1/a")["body"] == "recorded"


def test_authorities_and_rules_in_an_agents_workspace_are_those_before_the_agent_began(
    own_kernel: OwnKernel, tmp_path: Path
) -> None:
    (other := tmp_path / "other").mkdir()
    authority, rules = make_authority(tmp_path), tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nreply = "as written"\n')
    kernel = own_kernel(
        f'[llm]\nprovider = "offline"\noffline = {{ rules = "{rules}" }}\n[http]\nca_file = "{authority}"\n'
        f'[[agents]]\nname = "any"\ncommand = ["sleep", "1000"]\nworkspace = "{tmp_path}"\n'
    )
    context, planted = make_server_context(tmp_path, "IP:127.0.0.1"), make_authority(other)
    page = {"/": response(b"over tls")}
    with (
        http_server(page, context) as site,
        http_server(page, make_server_context(other, "IP:127.0.0.1")) as its,
        kernel.client() as client,
    ):
        rules.write_text(f'[[rule]]\nreply = "{PLANTED}"\n')
        authority.write_bytes(planted.read_bytes())
        assert up(client.think("?"))["content"] == "as written"
        up(client.hello(permissions={"allow": {"domains": [f"127.0.0.1:{each.port}" for each in (site, its)]}}))
        assert up(client.http(site.url()))["body"] == "over tls"
        assert "certificate isn't valid" in client.http(its.url())["error"]
