"""What one sending of a request is charged that got no answer."""

from agentos.llm.providers.provider import Delta, Failing, ProviderError, Rejected
from agentos.llm.queue.attempt import Attempt, Stalled
from agentos.llm.queue.claims import RequestSize
from agentos_sdk.values import Usage
from tests.support.runs.rows import each_row

INPUT = Usage(10)
BEGUN = Delta("some")  # of a token


@each_row(
    ("accepted", "heard", "error", "charged"),
    [
        (False, None, Failing("no"), Usage()),
        (False, None, Rejected("no"), Usage()),
        (True, None, Rejected("no"), Usage()),
        (True, None, Failing("no"), INPUT),
        (False, None, Stalled("nothing came"), INPUT),
        (True, BEGUN, Rejected("no"), Usage(10, 1)),
        (False, None, KeyboardInterrupt(), INPUT),
    ],
)
async def test_a_failure_costs_what_the_provider_may_have_done(
    accepted: bool, heard: Delta | None, error: ProviderError | KeyboardInterrupt, charged: Usage
) -> None:
    attempt = Attempt(10, RequestSize(40, 0), accepted=accepted)
    if heard is not None:
        attempt.receive(heard)

    attempt.fail(error)

    assert attempt.usage == charged
