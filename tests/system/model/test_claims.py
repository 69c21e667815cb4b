"""A provider whose count of tokens can't be true, through a whole kernel."""

from collections.abc import Iterator

import pytest

from agentos_sdk import AgentOSClient
from agentos_sdk.values import Usage
from tests.llm.vendors.script import Says, Text
from tests.support.kernel import running, until
from tests.support.runs.rows import each_row
from tests.support.servers.vendor import vendor

TOML = """
[llm]
provider = "openai"
model = "least"
base_url = "{url}"
budget = [{{ tokens = 10000, per = "1d" }}]
"""


CLAIMS = {"least": (Usage(1, 1), 250, 270), "most": (Usage(9 * 10**8, 1), 4000, 4300)}


@pytest.fixture(scope="module")
def client(kernels: None) -> Iterator[AgentOSClient]:
    """The operator of a kernel whose models are named by the bound that their counts exceed."""
    with vendor() as lying:
        lying.models = {bound: Says([Text("yes")], usage=claim) for bound, (claim, _, _) in CLAIMS.items()}
        with (
            running(TOML.format(url=lying.base_url), {"OPENAI_API_KEY": lying.key}) as kernel,
            kernel.client() as client,
        ):
            yield client


@each_row("bound", CLAIMS)
def test_the_audit_log_says_where_a_count_was_not_believed(client: AgentOSClient, bound: str) -> None:
    claim, least, most = CLAIMS[bound]

    before = client.metrics()["metrics"]["llm"]["budgets"][0]["used"]
    reply = client.think("x" * 4000, model=bound, max_tokens=100)
    used = client.metrics()["metrics"]["llm"]["budgets"][0]["used"] - before

    assert reply["tokens"] == used
    assert least <= used <= most
    note = f"; claimed {claim.total} tokens, charged {used:g} (at {bound}))"
    until(
        lambda: any(entry["about"].endswith(note) for entry in client.get_audit_log("model")["entries"]),
        f"the audit log says {note!r}",
    )
