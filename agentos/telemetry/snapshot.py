"""Snapshot of all metrics, copied in the event loop for the thread that writes the text."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy

from attrs import define
from msgspec import Struct

from agentos import __version__
from agentos.access.callers import Callers
from agentos.agents.life.lifecycle import State
from agentos.agents.registry import Registry
from agentos.agents.spec import GUEST
from agentos.kernel.call_counts import CallCounts
from agentos.llm.line import Line
from agentos.llm.models.counts import ModelUse
from agentos.services.metrics.figures import AgentFigures, KernelFigures
from agentos.services.metrics.sampler import Sampler

FAILED = State.FAILED


class NamedCounts(Struct, frozen=True):
    """The calls and the use of models of one name."""

    name: str
    calls: CallCounts
    models: Mapping[str, ModelUse]


class Snapshot(Struct, frozen=True):
    """``agents`` are those that haven't ended for good, and of the 100 that ended last those that were given up.

    ``failed`` is the number of all that were given up, counts are also those of the 100 that ended last.
    """

    version: str
    kernel: KernelFigures
    agents: Sequence[AgentFigures]
    failed: int
    counts: Sequence[NamedCounts]


@define(eq=False)
class Source:
    """Where snapshots come from; its methods are for the event loop."""

    sampler: Sampler
    registry: Registry
    callers: Callers
    line: Line

    def take(self) -> Snapshot:
        """A copy of the present figures and counts."""
        live = self.sampler.live()
        names = {one.name for one in live}
        given_up = {one.name: one for one in self.sampler.last_of_ended() if one.status == FAILED}
        agents = [*live, *(one for name, one in given_up.items() if name not in names)]
        failed = {agent.name for agent in self.registry if agent.state == FAILED} - names
        return Snapshot(__version__, self.sampler.kernel, agents, len(failed), [*self._counts(live)])

    def _counts(self, live: Sequence[AgentFigures]) -> Iterator[NamedCounts]:
        yield self._name("operator", self.callers.operator_counts)
        yield self._name(GUEST, self.callers.guest_counts)
        for name in dict.fromkeys(one.name for one in [*live, *self.sampler.last_of_ended()]):
            agent = self.registry.find_by_name(
                name
            )  # the last agent of that name; its counts include those of earlier ones
            if agent is not None:
                yield self._name(name, agent.caller.counts)

    def _name(self, name: str, calls: CallCounts) -> NamedCounts:
        models = {model: copy(use) for model, use in self.line.counts.of(name).items()}
        return NamedCounts(name, calls.copy(), models)
