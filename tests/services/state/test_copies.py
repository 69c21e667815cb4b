"""Copies of an agent's private keys, and giving them back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentos.database import open_database
from agentos.services.events import Event, StateChanged
from agentos.services.state.batch import StateLimits
from agentos.services.state.copies import KeptKey
from agentos.services.state.rows import TABLES
from agentos.services.state.state import State
from agentos_sdk.errors import QuotaExceeded

FORMER = [KeptKey("x", b"1"), KeptKey("y", b"2"), KeptKey("z", b"3")]
LATER = [KeptKey("v", b"4"), KeptKey("w", b"5"), KeptKey("x", b"6")]


@asynccontextmanager
async def kept(place: Path, *, has: list[KeptKey], bytes: int = 100) -> AsyncIterator[tuple[State, list[Event]]]:
    """The state of an agent that may have three keys, and the events since it has these."""
    published: list[Event] = []
    async with open_database(place / "db", {"state": TABLES}) as database:
        state = await State.load(database, StateLimits(3, bytes), published.append)
        await state.replace("a", has)
        published.clear()
        yield state, published


async def test_an_agent_has_the_keys_of_a_copy_and_no_others(tmp_path: Path) -> None:
    async with kept(tmp_path, has=FORMER) as (state, published):
        await state.replace("a", LATER)

        assert await state.copy("a") == LATER
        assert published == [
            *(StateChanged("agent", key, at, None, True, account="a") for key, at in (("y", 2), ("z", 3))),
            *(StateChanged("agent", one.key, at, None, False, account="a") for at, one in enumerate(LATER, 4)),
        ]


@pytest.mark.parametrize(
    ("keys", "what"),
    [([*LATER, KeptKey("y", b"1")], "3 keys"), ([KeptKey("x", b"1" * 10)], "10 bytes")],
)
async def test_a_copy_that_has_no_room_is_refused_before_and_when_it_is_given_back(
    keys: list[KeptKey], what: str, tmp_path: Path
) -> None:
    async with kept(tmp_path, has=FORMER, bytes=10) as (state, published):
        for give in (state.check_replace, state.replace):
            with pytest.raises(QuotaExceeded, match=f"may have {what}"):
                await give("a", keys)

        assert await state.copy("a") == FORMER
        assert published == []


async def test_checking_whether_a_copy_has_room_changes_nothing(tmp_path: Path) -> None:
    async with kept(tmp_path, has=FORMER, bytes=10) as (state, published):
        await state.check_replace("a", [KeptKey("k", b"1" * 9)])

        assert await state.copy("a") == FORMER
        assert published == []


async def test_a_key_that_has_expired_is_in_no_copy_and_not_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    brief = [KeptKey("x", b"1", now + 5), KeptKey("y", b"2", now + 6)]
    async with kept(tmp_path, has=[KeptKey("w", b"0", now), *brief]) as (state, _):
        assert await state.copy("a") == brief
        now += 5
        assert await state.copy("a") == brief[1:]
        await state.replace("a", brief)
        assert await state.copy("a") == brief[1:]
