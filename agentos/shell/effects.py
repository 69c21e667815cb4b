"""Whether a simple command does no more than it says, and the commands that it runs by its arguments."""

import re
from collections.abc import Sequence

from msgspec import Struct

from .programs import (
    BUILTINS,
    FIND_RUNS,
    LONG_FLAGS,
    LONG_VALUED,
    OPAQUE_RUNNERS,
    READABLE_BUILTINS,
    RUNNERS,
    SHELLS,
)
from .reading import Command, Word

Words = Sequence[Word]

XARGS_ARGUMENTS = Word(None, "...", several=True)  # the arguments that xargs adds
MAX_GUESSES = 6  # words of a runner with unknown options at which its command may begin
ASSIGNMENT = re.compile(r"[^=\"'$`]*=")
SETS_VARIABLE = re.compile(r"%[-#'+ 0-9.*]*[hjlLtz]*n")


class Effects(Struct, frozen=True):
    """``construct``: why more may run than the command's words say. Then also what was found in its arguments:
    commands, and texts for a shell. ``guessed``: one of the commands may be meant."""

    construct: str | None = None
    commands: tuple[Command, ...] = ()
    texts: tuple[str, ...] = ()
    guessed: bool = False


NO_EFFECTS = Effects()


def find_effects(command: Command) -> Effects:
    """What a simple command does besides starting a program with literal arguments."""
    first, words = command.words[0].text, command.words[1:]
    if first is None:
        return Effects("a command whose name is not known before it runs")
    name = command.name
    if first in BUILTINS and first not in RUNNERS:
        return effects_of_builtin(first, words)
    if name in SHELLS:
        return Effects(f"`{name}`, which is a shell", texts=shell_text(words))
    if name == "find":
        return effects_of_find(words)
    if name in RUNNERS or name in OPAQUE_RUNNERS:
        return effects_of_runner(name, words)
    return Effects(f"the job `{first}`") if first.startswith("%") else NO_EFFECTS


def effects_of_builtin(name: str, words: Words) -> Effects:
    """A builtin of bash. ``test -v`` and ``printf -v`` evaluate a subscript, ``%n`` sets a variable."""
    texts = [word.text for word in words]
    if name not in READABLE_BUILTINS:
        return Effects(f"the builtin `{name}`", texts=evaluated_texts(name, texts))
    if name in ("test", "[") and (None in texts or "-v" in texts or "-R" in texts):
        return Effects(f"`{name}` with `-v`, or with words that are not known before it runs")
    if name == "printf" and texts:
        form = texts[0]
        if form is None or form.startswith("-") or SETS_VARIABLE.search(form.replace("%%", "")):
            return Effects("`printf` with an option, `%n`, or a format that is not known before it runs")
    return NO_EFFECTS


def evaluated_texts(name: str, texts: Sequence[str | None]) -> tuple[str, ...]:
    """The texts that ``eval`` and ``trap`` run."""
    known = [text for text in texts if text is not None]
    if name == "eval" and len(known) == len(texts):
        return (" ".join(known[1:] if known[:1] == ["--"] else known),)
    if name == "trap":
        first = next((text for text in texts if text != "--"), None)
        return (first,) if first is not None else ()
    return ()


def shell_text(words: Words) -> tuple[str, ...]:
    """The text behind a shell's ``-c``."""
    rest, runs_text = iter(words), False
    for word in rest:
        if word.text is None:
            return ()
        if word.text in ("--", "-"):
            continue
        if not word.text.startswith(("-", "+")):
            return (word.text,) if runs_text else ()
        if re.fullmatch("[-+][a-zA-Z]+", word.text):
            runs_text |= "c" in word.text
            if word.text.endswith(("o", "O")):
                next(rest, None)
        elif not word.text.startswith("--"):
            return ()
    return ()


def effects_of_find(words: Words) -> Effects:
    """``find``, and the commands between ``-exec`` and ``;`` or ``+``."""
    texts = [word.text for word in words]
    if None not in texts and not any(text and FIND_RUNS.match(text) for text in texts):
        return NO_EFFECTS
    commands, at = list[Command](), 0
    while at < len(words):
        at += 1
        if texts[at - 1] not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        end = next((index for index in range(at, len(words)) if texts[index] in (";", "+")), len(words))
        if end > at:
            commands.append(Command(tuple(map(with_placeholder, words[at:end]))))
        at = end
    return Effects("`find` with an action, or with words that are not known before it runs", tuple(commands))


def effects_of_runner(name: str, words: Words) -> Effects:
    """A program that runs the command in its arguments."""
    construct = f"`{name}`, which runs its arguments"
    texts = [word.text for word in words]
    if name in OPAQUE_RUNNERS or (name == "command" and texts and texts[0] in ("-v", "-V")):
        return Effects(construct)
    if name == "watch" and not {"-x", "--exec"} & set(texts):
        rest = [word.text for word in next(iter(commands_of(name, words)[0]), ())]
        return Effects(construct, texts=(" ".join(text for text in rest if text),) if None not in rest else ())
    if name == "env" and (text := split_string(texts)) is not None:
        return Effects(construct, texts=(text,))
    if name == "flock" and len(texts) > 2 and texts[-2] in ("-c", "--command"):
        return Effects(construct, texts=(texts[-1],) if texts[-1] is not None else ())
    more = (XARGS_ARGUMENTS,) if name == "xargs" else ()
    starts, certain = commands_of(name, words)
    return Effects(
        construct, tuple(Command((*map(with_placeholder, rest), *more)) for rest in starts), guessed=not certain
    )


def split_string(texts: Sequence[str | None]) -> str | None:
    """``env -S 'a b' c`` runs ``a b c``."""
    for at, text in enumerate(texts):
        if text is not None and (found := re.fullmatch(r"(?:-[iv0]*S|--split-string=?)(.*)", text, re.DOTALL)):
            rest = [found[1], *texts[at + 1 :]]
            return " ".join(part for part in rest if part is not None)
    return None


def commands_of(name: str, words: Words) -> tuple[Sequence[Words], bool]:
    """The command of a runner, and true; or the commands that it may run, and false."""
    table = RUNNERS[name]
    valued, operands = table or ("", 0)
    at, certain = 0, table is not None
    while certain and at < len(words):
        text = words[at].text
        if text is None:
            certain = name == "env" and ASSIGNMENT.match(words[at].source) is not None
        elif text.startswith("--") and text != "--":
            long, equals, _ = text[2:].partition("=")
            certain = bool(equals) or long in LONG_FLAGS or long in LONG_VALUED
            at += not equals and long in LONG_VALUED
        elif text.startswith("-"):
            value = next((index for index, letter in enumerate(text[1:], 2) if letter in valued), 0)
            at += value == len(text)
        elif name != "env" or "=" not in text:
            if not operands:
                return [words[at:]], True
            operands -= 1
        at += certain
    plain = [index for index in range(at, len(words)) if not (words[index].text or "-").startswith("-")]
    return [words[index:] for index in plain[:MAX_GUESSES]], False


def with_placeholder(word: Word) -> Word:
    """A word in which ``find`` and ``xargs`` put a name for ``{}``."""
    return Word(None, word.source) if word.text is not None and "{}" in word.text else word
