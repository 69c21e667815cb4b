"""Values in the database: of one statement or several, none is left out."""

import sqlite3
from contextlib import closing

from agentos.services.state.batch import MAX_BATCHED_BYTES, Change, StateLimits, store_all
from agentos.services.state.rows import TABLES
from agentos.services.state.spaces import GLOBAL
from tests.support.runs.rows import each_row

SIZES = (MAX_BATCHED_BYTES - 1, MAX_BATCHED_BYTES, MAX_BATCHED_BYTES + 1)


@each_row("sizes", [SIZES, SIZES * 2, [5] * 100, [5] * 101, [*SIZES, *[5] * 200], []])
def test_values_of_any_size_and_number_are_stored_once_each(sizes: list[int]) -> None:
    changes = [
        Change(GLOBAL, f"{number:04}", b"1" * (size - 4), f"a{number}", None, None) for number, size in enumerate(sizes)
    ]
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in TABLES:
            connection.execute(statement)
        versions = [one.unwrap() for one in store_all(StateLimits(1, 1 << 20), changes, connection)]
        kept = connection.execute("SELECT key, value FROM state ORDER BY key").fetchall()
        (accounts,) = connection.execute("SELECT count(*) FROM state_accounts WHERE keys = 1").fetchone()

    assert versions == list(range(1, len(sizes) + 1))
    assert kept == [(one.key, one.value) for one in changes]
    assert accounts == len(sizes)
