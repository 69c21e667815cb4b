"""Kept messages in the database: of one statement or several, no row is left out."""

import sqlite3
from contextlib import closing

from agentos.services.mail.mailbox import Message
from agentos.services.mail.rows import AT_ONCE, MAX_BATCHED_BYTES, TABLES, as_row, insert_all, read_all
from tests.support.runs.rows import each_row

SIZES = (MAX_BATCHED_BYTES - 1, MAX_BATCHED_BYTES, MAX_BATCHED_BYTES + 1)


@each_row("sizes", [SIZES, SIZES * 2, [2] * AT_ONCE, [2] * (AT_ONCE + 1), [*SIZES, *[2] * (2 * AT_ONCE)], []])
def test_messages_of_any_size_and_number_are_stored_once_each(sizes: list[int]) -> None:
    sent = [Message(7, "ann", "agent", b"1" * size, id=number) for number, size in enumerate(sizes)]
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(TABLES[0])
        outcomes = insert_all([[as_row("box", one)] for one in sent], connection)
        kept = read_all(connection)

    assert len(outcomes) == len(sizes)
    assert {(box, dead) for box, _, dead in kept} <= {("box", False)}
    assert [(one.id, one.body) for _, one, _ in kept] == [(one.id, one.body) for one in sent]
