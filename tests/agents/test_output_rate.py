"""How fast output is read: by the loop's other work, and by what waits for the disk."""

from attrs import define

from agentos.agents.life.output_rate import BYTES_PER_SECOND, LEAST_SHARE, LINE_COST_BYTES, OutputRate
from tests.support.runs.rows import each_row

MIB = 1 << 20


@define
class Loop:
    """A loop of which the clocks are moved by hand."""

    now: float = 0.0
    cpu: float = 0.0
    fill: float = 0.0

    def rate(self) -> OutputRate:
        return OutputRate(lambda: self.fill, lambda: self.now, lambda: self.cpu)

    def run(self, rate: OutputRate, reading: float, others: float) -> float:
        """What a MiB costs after 20 times 0.1 s in which the loop spent these parts of its time."""
        for _ in range(20):
            with rate.measure():
                self.cpu += 0.1 * reading
            self.cpu += 0.1 * others
            self.now += 0.1
            cost = rate.cost(MIB, 0)
        return cost


IDLE_COST = MIB / BYTES_PER_SECOND


@each_row(
    ("reading", "others", "share"),
    [(0.0, 0.0, 1.0), (0.6, 0.0, 1.0), (0.0, 0.5, 0.25), (0.5, 0.25, 0.25), (0.2, 0.8, LEAST_SHARE)],
)
def test_what_the_loop_does_beside_reading_slows_it_down(reading: float, others: float, share: float) -> None:
    loop = Loop()

    cost = loop.run(loop.rate(), reading, others)

    assert abs(cost * share - IDLE_COST) < IDLE_COST / 100


def test_a_loop_that_becomes_idle_reads_fast_again() -> None:
    loop = Loop()
    rate = loop.rate()
    busy = loop.run(rate, 0.1, 0.9)

    assert loop.run(rate, 0.1, 0) < busy / 10


@each_row(("fill", "share"), [(0.0, 1.0), (0.25, 1.0), (0.5, 0.25), (0.75, LEAST_SHARE), (1.0, LEAST_SHARE)])
def test_lines_that_wait_for_the_disk_slow_it_down(fill: float, share: float) -> None:
    assert Loop(fill=fill).rate().cost(MIB, 0) == IDLE_COST / share


def test_a_line_costs_as_some_bytes_do() -> None:
    rate = Loop().rate()

    assert rate.cost(10, 5) == rate.cost(10 + 5 * LINE_COST_BYTES, 0)
