from typing import Any

import pytest

from agentos_sdk.calls.state import Fetch, Keys, Store
from agentos_sdk.encoding.codec import Invalid, decode
from tests.support.runs.rows import each_row

ROWS: list[tuple[Any, dict[str, object], dict[str, object]]] = [
    (Store, {"key": "k", "value": 1, "ttl": "1ms"}, {"ttl": 0}),
    (Store, {"key": "k" * 512, "value": 1}, {"key": "k" * 513}),
    (Store, {"key": "é" * 256, "value": 1}, {"key": "é" * 256 + "k"}),
    (Store, {"key": "k", "value": 1}, {"key": ""}),
    (Fetch, {"key": "k", "agent": "a" * 1000}, {"agent": "a" * 1001}),
    (Fetch, {"key": "k", "agent": "a"}, {"agent": ""}),
    (Keys, {"prefix": ""}, {"prefix": "\n"}),
    (Keys, {"after": "k" * 512}, {"after": "k" * 513}),
]


@each_row(("request_", "fields", "wrong"), ROWS)
def test_a_field_of_the_state_s_calls_has_a_range(
    request_: Any, fields: dict[str, object], wrong: dict[str, object]
) -> None:
    [name] = wrong

    decode(request_, fields)
    with pytest.raises(Invalid, match=f"{name}: expected"):
        decode(request_, {**fields, **wrong})
