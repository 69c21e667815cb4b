"""Who asks what and when: agents of three kinds, by seed.

A light agent asks short questions, a heavy one questions seven times as dear; both come by a Poisson process, whether
or not they were answered. The flooder keeps a hundred requests waiting. In the contest all agents always have work.
"""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import frozen

from .simulator import Asked, Behaviour

Kind = Literal["light", "heavy", "flooder"]

SIZES: dict[Kind, tuple[int, int]] = {"light": (60, 20), "heavy": (300, 200), "flooder": (60, 20)}  # tokens in, out
SPREAD = 0.5  # of a size, to both sides
FLOOD = 100  # requests that a flooder has under way
DEEP, ALL_DEEP = 6, 1000  # that an agent of the contest has, so that some always wait, and all of them together
PARTS: dict[Kind, float] = {"light": 0.30, "heavy": 0.25, "flooder": 0.45}  # of what the provider can do


@frozen
class Request:
    """``due``: seconds from the beginning, where it doesn't wait for an earlier one's answer."""

    asked: Asked
    agent: str
    kind: Kind
    due: float = 0.0


@frozen
class Agent:
    """``outstanding`` requests are under way at any time; ``None``: each comes when it is due."""

    name: str
    kind: Kind
    requests: Iterable[Request]
    outstanding: int | None = None


def service_time(kind: Kind, behaviour: Behaviour) -> float:
    """Seconds in a slot, on average."""
    tokens_in, tokens_out = SIZES[kind]
    return behaviour.base + behaviour.per_input * tokens_in + behaviour.per_output * tokens_out


def _endless(name: str, kind: Kind, seed: int) -> Iterator[Request]:
    dice = random.Random(f"{seed} {name}")
    tokens_in, tokens_out = SIZES[kind]
    for number in itertools.count():
        much = dice.uniform(1 - SPREAD, 1 + SPREAD)
        asked = Asked(f"{name}/{number}", round(tokens_in * much), round(tokens_out * much))
        yield Request(asked, name, kind)


def _poisson(names: list[str], kind: Kind, seconds: float, rate: float, seed: int) -> list[Agent]:
    """``rate`` requests per second of all of them together; each agent has about as many."""
    dice = random.Random(f"{seed} {kind}")
    each = {name: _endless(name, kind, seed) for name in names}
    came: dict[str, list[Request]] = {name: [] for name in names}
    due, turn = dice.expovariate(rate), list[str]()
    while due < seconds:
        if not turn:
            turn = dice.sample(names, len(names))
        name = turn.pop()
        request = next(each[name])
        came[name].append(Request(request.asked, name, kind, due))
        due += dice.expovariate(rate)
    return [Agent(name, kind, requests) for name, requests in came.items()]


def flooded(n: int, seconds: float, behaviour: Behaviour, seed: int = 1) -> list[Agent]:
    """One flooder, a tenth of the others heavy, the rest light, for so many seconds of the provider's full work."""
    heavy = max(1, n // 10)
    names: dict[Kind, list[str]] = {
        "light": [f"light-{number}" for number in range(n - heavy - 1)],
        "heavy": [f"heavy-{number}" for number in range(heavy)],
    }
    rates = {kind: PARTS[kind] * behaviour.slots / service_time(kind, behaviour) for kind in SIZES}
    flood = itertools.islice(_endless("flooder", "flooder", seed), round(rates["flooder"] * seconds) + FLOOD)
    return [
        *(agent for kind in names for agent in _poisson(names[kind], kind, seconds, rates[kind], seed)),
        Agent("flooder", "flooder", list(flood), FLOOD),
    ]


def contest(n: int, seed: int = 1) -> list[Agent]:
    """Light and heavy in turn, all of them with work without end."""
    kinds: list[Kind] = ["heavy" if number % 2 else "light" for number in range(n)]
    deep = min(DEEP, ALL_DEEP // n)
    return [
        Agent(f"{kind}-{number}", kind, _endless(f"{kind}-{number}", kind, seed), deep)
        for number, kind in enumerate(kinds)
    ]


def modest(n: int, each: int, seed: int = 1) -> list[Agent]:
    """Light agents that ask ``each`` questions, one after the other."""
    names = [f"light-{number}" for number in range(n)]
    return [Agent(name, "light", list(itertools.islice(_endless(name, "light", seed), each)), 1) for name in names]
