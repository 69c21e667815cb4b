"""A provider whose count of tokens can't be true, through a whole kernel."""

import pytest

from agentos_sdk.values import Usage
from tests.llm.vendors.script import Says, Text
from tests.support.kernel import running, until
from tests.support.servers.vendor import vendor

TOML = """
[llm]
provider = "openai"
model = "model"
base_url = "{url}"
budget = [{{ tokens = 10000, per = "1d" }}]
"""


@pytest.mark.parametrize(
    ("claim", "bound", "least", "most"), [(Usage(1, 1), "least", 250, 270), (Usage(9 * 10**8, 1), "most", 4000, 4300)]
)
@pytest.mark.usefixtures("kernels")
def test_the_audit_log_says_where_a_count_was_not_believed(claim: Usage, bound: str, least: int, most: int) -> None:
    with vendor() as lying:
        lying.models = {"model": Says([Text("yes")], usage=claim)}
        with (
            running(TOML.format(url=lying.base_url), {"OPENAI_API_KEY": lying.key}) as kernel,
            kernel.client() as client,
        ):
            reply = client.think("x" * 4000, max_tokens=100)
            used = client.metrics()["metrics"]["llm"]["budgets"][0]["used"]

            assert reply["tokens"] == used
            assert least <= used <= most
            note = f"; claimed {claim.total} tokens, charged {used:g} (at {bound}))"
            until(
                lambda: any(entry["about"].endswith(note) for entry in client.get_audit_log("model")["entries"]),
                f"the audit log says {note!r}",
            )
