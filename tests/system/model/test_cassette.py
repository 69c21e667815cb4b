"""What an agent writes to a cassette is nothing for this kernel: it was read before agents began."""

from pathlib import Path

import trio

from agentos.llm.cassettes.cassette import Cassette
from agentos.llm.providers.offline import Offline
from agentos.llm.providers.provider import Message, Question
from tests.conftest import OwnKernel
from tests.services.http.test_har import entry, write

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
