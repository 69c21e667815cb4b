"""Regular expressions that take time linear in the text, whatever the pattern: for patterns that agents choose.

Python's ``re`` tries alternatives one after the other and holds the interpreter meanwhile: ``(a+)+$`` can stop a
kernel. Here all alternatives are followed at once (Thompson's construction, with a cache of the sets of states). So
there are no backreferences, no lookaround, and no groups to read. The rest means what it means in ``re``.
"""

from collections.abc import Callable, Iterable

from attrs import define, field, frozen

MAX_PATTERN_CHARS = 500
MAX_STATES = 300  # of one pattern; the time per character is at most proportional to it
MAX_CACHED = 20_000  # states in the sets of the cached transitions, and one for each transition

Test = Callable[[str], bool]


class PatternError(ValueError):
    """The pattern isn't one of these; the text says where and why."""


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


_CLASSES: dict[str, Test] = {"d": str.isdecimal, "s": str.isspace, "w": _is_word}
_CLASSES |= {name.upper(): (lambda char, test=test: not test(char)) for name, test in _CLASSES.items()}  # type: ignore[misc]
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}


@define(eq=False)
class _State:
    """``test`` accepts a character and leads to ``after``; without a test all of ``after`` are entered at once.

    ``at``: it may be entered only at the ``^`` beginning or the ``$`` end of the text.
    """

    after: "list[_State]" = field(factory=list)
    test: Test | None = None
    at: str = ""


@frozen
class _Part:
    """A piece of the automaton: where it begins, and the states whose ``after`` is what follows it."""

    begin: _State
    ends: list[_State]


class _Parser:
    """Builds the automaton of a pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.states = pattern, 0, 0
        self.tests: dict[int, tuple[Test, int]] = {}  # by where they begin, with where they end: repetitions share them
        self.ignore_case = pattern.startswith("(?i)")
        if self.ignore_case:
            self.at = 4

    def parse(self, accepted: _State) -> _State:
        whole = self._alternatives()
        if self.at < len(self.pattern):
            raise self._error("unbalanced )")
        for state in whole.ends:
            state.after.append(accepted)
        return whole.begin

    def _error(self, why: str) -> PatternError:
        return PatternError(f"{why} at character {self.at + 1}")

    def _state(self, test: Test | None = None, at: str = "") -> _State:
        self.states += 1
        if self.states > MAX_STATES:
            raise PatternError(f"too long: it has more than {MAX_STATES} states, repetitions counted")
        return _State(test=test, at=at)

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise self._error("unexpected end")
        self.at += 1
        return char

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        begin = self._state()
        begin.after = [part.begin for part in parts]
        return _Part(begin, [end for part in parts for end in part.ends])

    def _sequence(self) -> _Part:
        begin = self._state()
        ends = [begin]
        while self._peek() not in ("", "|", ")"):
            part = self._repeated()
            for end in ends:
                end.after.append(part.begin)
            ends = part.ends
        return _Part(begin, ends)

    def _repeated(self) -> _Part:
        start = self.at
        part = self._item()
        times = self._times()
        if times is None:
            return part
        if self._times() is not None:
            raise self._error("multiple repeat")
        least, most = times
        end = self.at
        begin = self._state()
        ends, done = [begin], list[_State]()
        for number in range(least if most is None else most):
            if number >= least:
                done += ends
            part = self._again(start)
            for state in ends:
                state.after.append(part.begin)
            ends = part.ends
        if most is None:
            loop = self._state()
            for state in ends:
                state.after.append(loop)
            part = self._again(start)
            loop.after.append(part.begin)
            for state in part.ends:
                state.after.append(loop)
            ends = [loop]
        self.at = end
        return _Part(begin, ends + done)

    def _again(self, start: int) -> _Part:
        """A further copy of the item at ``start``."""
        self.at = start
        return self._item()

    def _times(self) -> tuple[int, int | None] | None:
        """The least and the most repetitions that are asked for here, None if none are."""
        char = self._peek()
        if char and char in "*+?":
            self.at += 1
            found: tuple[int, int | None] = {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        else:
            least, comma, most = self.pattern[self.at + 1 :].partition("}")[0].partition(",")
            closed = "}" in self.pattern[self.at :]
            if char != "{" or not closed or not (least + most).isdecimal() or len(least + most) > 8:
                return None  # a { that begins no repetition is a letter, as in re
            found = int(least or 0), int(most) if most else None if comma else int(least)
            if found[1] is not None and found[1] < found[0]:
                raise self._error("min repeat greater than max repeat")
            if max(found[0], found[1] or 0) > MAX_STATES:
                raise self._error(f"more than {MAX_STATES} repetitions")
            self.at = self.pattern.index("}", self.at) + 1
        if self._peek() == "?":
            self.at += 1  # lazy: finds the same lines
        return found

    def _item(self) -> _Part:
        char = self._next()
        if char == "(":
            if self._peek() == "?":
                if self.pattern[self.at : self.at + 2] != "?:":
                    raise self._error("only (...) and (?:...) groups, and (?i) at the beginning, are supported")
                self.at += 2
            part = self._alternatives()
            if self._peek() != ")":
                raise self._error("missing )")
            self.at += 1
            return part
        if char in "^$":
            state = self._state(at=char)
            return _Part(state, [state])
        if char in "*+?":
            raise self._error("nothing to repeat")
        start = self.at
        if start not in self.tests:
            test = self._set() if char == "[" else self._test(char)
            self.tests[start] = test, self.at
        test, self.at = self.tests[start]
        state = self._state(test)
        return _Part(state, [state])

    def _test(self, char: str) -> Test:
        if char == ".":
            return lambda found: found != "\n"
        if char != "\\":
            return self._equals(char)
        escaped = self._escape()
        return escaped if callable(escaped) else self._equals(escaped)

    def _equals(self, char: str) -> Test:
        if self.ignore_case:
            folded = char.casefold()
            return lambda found: found.casefold() == folded
        return char.__eq__

    def _escape(self) -> str | Test:
        """The class or the character after a backslash."""
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            digits = self.pattern[self.at : self.at + 2]
            self.at += 2
            try:
                return chr(int(digits, 16)) if len(digits) == 2 else self._fail("incomplete escape \\x")
            except ValueError:
                self._fail("incomplete escape \\x")
        if char.isascii() and char.isalnum():
            self._fail(f"\\{char} isn't supported")
        return char

    def _fail(self, why: str) -> str:
        raise self._error(why)

    def _set(self) -> Test:
        """A set of characters: [a-z_], [^0-9]."""
        negated = self._peek() == "^"
        self.at += negated
        tests: list[Test] = []
        first = True
        while (char := self._next()) != "]" or first:
            first = False
            low = self._escape() if char == "\\" else char
            if not isinstance(low, str):
                tests.append(low)
            elif self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                char = self._next()
                high = self._escape() if char == "\\" else char
                if not isinstance(high, str) or high < low:
                    raise self._error("bad range")
                tests.append(self._between(low, high))
            else:
                tests.append(self._equals(low))
        return lambda found: any(test(found) for test in tests) != negated

    def _between(self, low: str, high: str) -> Test:
        if self.ignore_case:
            return lambda found: low <= found.lower() <= high or low <= found.upper() <= high
        return lambda found: low <= found <= high


class Pattern:
    """A compiled pattern; raises :class:`PatternError`. Not for several threads at once."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise PatternError(f"expected at most {MAX_PATTERN_CHARS} characters, got {len(pattern)}")
        self._accepted = _State()
        try:
            self._begin = _Parser(pattern).parse(self._accepted)
        except RecursionError:
            raise PatternError("nested too deep") from None
        self._cache: dict[tuple[frozenset[_State], str], frozenset[_State]] = {}
        self._cached = 0  # as MAX_CACHED counts
        self._first = self._enter([self._begin], at_begin=True)

    def matches(self, text: str) -> bool:
        """Whether the pattern is found anywhere in ``text``."""
        states, cache, accepted = self._first, self._cache, self._accepted
        for char in text:
            if accepted in states:
                return True
            following = cache.get((states, char))
            if following is None:
                following = self._follow(states, char)
            states = following
        return accepted in self._enter(states, at_begin=not text, at_end=True)

    def _follow(self, states: frozenset[_State], char: str) -> frozenset[_State]:
        passed = {test: test(char) for test in {state.test for state in states} if test is not None}
        after = [one for state in states if state.test is not None and passed[state.test] for one in state.after]
        following = self._enter([*after, self._begin])
        self._cached += 1 + len(following)
        if self._cached > MAX_CACHED:
            self._cache.clear()
            self._cached = 1 + len(following)
        self._cache[states, char] = following
        return following

    def _enter(self, states: Iterable[_State], at_begin: bool = False, at_end: bool = False) -> frozenset[_State]:
        """These states and all that are entered from them without a character."""
        found: set[_State] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in found or (state.at == "^" and not at_begin):
                continue
            found.add(state)
            if state.test is None and (state.at != "$" or at_end):
                waiting += state.after
        return frozenset(found)
