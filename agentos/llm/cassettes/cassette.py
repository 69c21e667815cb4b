"""A cassette: which recorded answer a question gets, and what is said where there is none.

Problem: a test's agent asks a model, which costs money, needs a key and answers differently each time. Idea: the
answers of one run are recorded, and a later run gets them by its questions, never by their order alone. What must stay
true: a question that isn't recorded gets no answer; among equal questions the n-th gets the n-th answer; nothing is
matched in silence. docs/decisions/0106.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import trio
from attrs import Factory, define, field

from agentos.llm.providers.provider import Answer, Delta, Denied, OnDelta, Provider, Question, ask
from agentos.llm.settings import CassetteMode
from agentos.services.differences import Misses

from .cassette_file import BadCassette, Entry, append_entry, read_cassette, write_cassette
from .recorded_question import Digests, Recorded, differences, digest_question, find_nearest, record_question

log = logging.getLogger(__name__)

MAX_LISTED = 10  # entries in one message


@define(eq=False)
class Cassette:
    """The recorded questions and answers of a file. ``broken`` says why it can't be used."""

    path: Path
    mode: CassetteMode = "replay"
    entries: list[Entry] = field(factory=list)
    broken: str | None = None
    _by_digest: dict[str, list[Entry]] = field(factory=lambda: defaultdict(list))  # by the exact and the masked one
    _asked: defaultdict[str, int] = field(factory=lambda: defaultdict(int))  # how often, by the masked digest
    _masked: int = 0  # questions that were equal after masks only
    _misses: Misses = Factory(lambda self: Misses(self.path, log), takes_self=True)
    _begun: Iterator[int] = field(factory=count)
    _new: list[tuple[int, Entry]] = field(factory=list)  # with the time at which it was asked
    _opened: int = 0  # providers that are open
    _is_complete: bool = True  # every new answer could be written
    _lock: trio.Lock = field(factory=trio.Lock)

    @classmethod
    def read(cls, path: Path, mode: CassetteMode) -> "Cassette":
        """The cassette of a file, which is read once: agents that begin later may be able to change it. Blocks."""
        made = cls(path, mode)
        try:
            for entry in read_cassette(path) if mode != "record" else ():
                made._add(entry)
        except BadCassette as error:
            log.error("cassette: %s", error)
            made.broken = str(error)
        return made

    async def connect(self, connect: Callable[[], Awaitable[Provider]]) -> "CassetteProvider":
        """A provider that answers from this cassette; ``connect`` opens the real one where that may be asked.

        Raises :class:`Denied` if the file can't be used, and what ``connect`` raises.
        """
        if self.broken is not None:
            raise Denied(f"cassette: {self.broken}")
        provider = await connect() if self.mode in ("record", "extend") else None
        self._opened += 1
        return CassetteProvider(self, provider)

    def find(self, digests: Digests) -> Entry | None:
        """The first unused entry of the same question, which is used then; of one that is equal after masks else."""
        self._asked[digests.masked] += 1
        for digest in (digests.exact, digests.masked):
            for entry in self._by_digest[digest]:
                if not entry.used:
                    entry.used = True
                    self._masked += entry.digests.exact != digests.exact
                    return entry
        return None

    def begin(self) -> int:
        """Note that a question is asked that isn't recorded: answers are sorted so at the end."""
        return next(self._begun)

    async def add(self, begun: int, question: Recorded, digests: Digests, answer: Answer) -> None:
        """Write a new answer. Where that fails, the recording ends and the caller has its answer all the same."""
        async with self._lock:
            number = max((entry.number for entry in self.entries), default=0) + 1
            entry = Entry(number, question, answer, digests, used=True)
            self._new.append((begun, entry))
            if self._is_complete:
                try:
                    await trio.to_thread.run_sync(append_entry, self.path, entry, self.entries)
                except OSError as error:
                    self._is_complete = False
                    log.error("cassette %s: no more answers are recorded: %s", self.path, error.strerror)
            self._add(entry)

    def explain_miss(self, question: Recorded, digests: Digests) -> str:
        """Why there is no answer: a sentence for the caller, which doesn't have the words of recorded questions."""
        if recorded := len(self._by_digest[digests.masked]):
            return f"asked {self._asked[digests.masked]} times, recorded {recorded}"
        nearest = find_nearest(question, digests, self.entries)
        if nearest is None:
            return "nothing is recorded" if not self.entries else "no question like it is recorded"
        return self._misses.tell(nearest.number, list(differences(question, nearest.question)))

    async def close(self) -> None:
        """Say which answers weren't used, and remove them if that is wanted, when the last provider has closed."""
        self._opened -= 1
        if self._opened:
            return
        if self._is_complete and self._new != (new := sorted(self._new, key=lambda one: one[0])):
            before = self.entries[: -len(new)]
            await trio.to_thread.run_sync(write_cassette, self.path, [*before, *(entry for _, entry in new)])
        unused = [entry for entry in self.entries if not entry.used]
        if self._masked:
            log.info("cassette %s: questions that were equal only after masks: %d", self.path, self._masked)
        if not unused:
            return
        if self.mode == "prune" and len(unused) < len(self.entries):
            kept = [entry for entry in self.entries if entry.used]
            await trio.to_thread.run_sync(write_cassette, self.path, kept)
            log.info("cassette %s: %d unused answers were removed", self.path, len(unused))
            return
        places = {entry.digests.place for entry in self.entries if entry.used and entry.digests.place}
        told = [f"{entry.number}{' (stale)' * (entry.digests.place in places)}" for entry in unused[:MAX_LISTED]]
        more = ", …" * (len(unused) > MAX_LISTED)
        log.warning(
            "cassette %s: %d of %d answers were not used: entries %s%s",
            self.path,
            len(unused),
            len(self.entries),
            ", ".join(told),
            more,
        )

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        for digest in {entry.digests.exact, entry.digests.masked}:
            self._by_digest[digest].append(entry)


@define(eq=False)
class CassetteProvider(Provider):
    """Answers from a cassette; asks ``provider``, if there is one, what isn't recorded, and records that."""

    cassette: Cassette
    provider: Provider | None

    async def answer(self, question: Question, on_delta: OnDelta) -> Answer:
        recorded = await trio.to_thread.run_sync(record_question, question)
        digests = await trio.to_thread.run_sync(digest_question, recorded)
        entry = self.cassette.find(digests) if self.cassette.mode != "record" else None
        if entry is not None:
            return _deliver(entry.answer, on_delta)
        if self.provider is None:
            why = await trio.to_thread.run_sync(self.cassette.explain_miss, recorded, digests)
            raise Denied(f"the cassette {self.cassette.path.name} has no answer to this question: {why}")
        begun = self.cassette.begin()
        answer = await ask(self.provider, question, on_delta)
        await self.cassette.add(begun, recorded, digests, answer)
        return answer

    embed = answer

    def supports(self, question: Question) -> str | None:
        return self.provider.supports(question) if self.provider is not None else None

    async def aclose(self) -> None:
        await self.cassette.close()
        if self.provider is not None:
            await self.provider.aclose()


def _deliver(answer: Answer, on_delta: OnDelta) -> Answer:
    """The recorded answer, its text in one piece."""
    on_delta(Delta(accepted=True))
    if answer.text:
        on_delta(Delta(answer.text))
    if answer.calls:
        on_delta(Delta(unseen=sum(len(call.name) + len(str(call.arguments)) for call in answer.calls)))
    return answer
