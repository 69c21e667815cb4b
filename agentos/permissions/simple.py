"""What one simple command runs besides itself, and whether it does what can't be judged.

A wrapper (``env``, ``timeout``, ``xargs``, ...) runs the command behind its options; a shell with ``-c`` runs a text;
some builtins evaluate their arguments as code. Programs that can run others by an option or a file of their own
(``git``, ``tar``, ``vim``) are whoever grants them to judge.
"""

import re
from collections.abc import Callable, Sequence

from attrs import frozen

from .script import Simple, Word
from .variables import settings
from .wrappers import WRAPPERS, behind

Words = Sequence[Word]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)
NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=|\Z)", re.ASCII)
SHELLS = frozenset({"sh", "bash", "dash", "ash", "rbash"})
OTHER_SHELLS = frozenset({"ksh", "mksh", "zsh", "fish", "csh", "tcsh", "yash", "pwsh", "nu"})
HARMLESS_MODES = frozenset({"pipefail", "errexit", "nounset", "xtrace", "noclobber", "noglob", "verbose"})
EVALUATES = frozenset({"alias", "bind", "compgen", "complete", "compopt", "coproc", "enable", "fc", "let", "shopt"})
UNARY = frozenset("-" + letter for letter in "abcdefghknprstuwxzGLNOS")
GUESSES = 6  # words of a wrapper that isn't understood at which its command may begin
BINARY = frozenset({"=", "==", "!=", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"})


@frozen
class Effects:
    """What a command runs, simple commands and texts for a shell, and in words what can't be judged.

    ``perhaps``: it may run these instead.
    """

    commands: tuple[Simple, ...] = ()
    texts: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    perhaps: tuple[Simple, ...] = ()


NOTHING = Effects()


def opaque(*what: str) -> Effects:
    return Effects(opaque=what)


def effects(simple: Simple) -> Effects:
    name = simple.words[0].text
    if name is None:
        return opaque("a command whose name isn't known before it runs")
    name, words = name.rpartition("/")[2], simple.words[1:]
    if name in EVALUATES:
        return opaque(name)
    if name in OTHER_SHELLS and any(word.text is None or word.text.startswith("-") for word in words):
        return opaque(f"{name} (a shell with another language)")
    if name in SHELLS:
        return shell(name, words)
    if name in WRAPPERS:
        return wrapped(name, words)
    if name in BUILTINS:
        if simple.words[0].source != name and splits(simple):
            return opaque(f"{name} of what isn't known before it runs")
        return BUILTINS[name](name, words)
    return NOTHING


def splits(simple: Simple) -> bool:
    """Whether it would set more than it says, should bash not know ``export`` by its plain name and split its words."""
    return BUILTINS.get(simple.words[0].text or "") is declare and any(word.several for word in simple.words)


def wrapped(name: str, words: Words) -> Effects:
    found = behind(name, words)
    if found is None:
        return Effects(opaque=(f"{name} with options that are not understood",), perhaps=perhaps(words))
    commands = [Simple(tuple(words), " ".join(word.source for word in words)) for words in found.commands]
    if any(splits(simple) for simple in commands):
        return opaque(f"{name} in front of an assignment of what isn't known before it runs")
    elsewhere = (f"{name}, which runs in another place",) if found.elsewhere else ()
    return Effects(tuple(commands), found.texts, (*settings(found.assigned), *elsewhere))


def wraps(simple: Simple) -> bool:
    return (simple.words[0].text or "").rpartition("/")[2] in WRAPPERS


def perhaps(words: Words) -> tuple[Simple, ...]:
    """What a wrapper may run whose options aren't known: for denials only, as no grant but that of all covers it."""
    plain = [at for at, word in enumerate(words) if word.text is not None and not word.text.startswith("-")]
    return tuple(Simple(tuple(words[at:]), " ".join(word.source for word in words[at:])) for at in plain[:GUESSES])


def shell(name: str, words: Words) -> Effects:
    """A shell: the text behind ``-c``; a script or its input are for whoever grants it to judge."""
    runs_text = False
    rest = list(words)
    while rest and (option := rest[0].text) is not None and re.match(r"[-+]", option):
        rest.pop(0)
        if option in ("--", "-"):
            break
        if re.fullmatch(r"[-+][ceuxnvfls]*o?", option):
            runs_text |= "c" in option
            if option.endswith("o") and (not rest or rest.pop(0).text not in HARMLESS_MODES):
                return opaque(f"{name} in another mode")
        elif option not in ("--norc", "--noprofile", "--version", "--help"):
            return opaque(f"{name} in another mode")
    if not rest:
        return NOTHING
    text = rest[0].text
    if text is None:
        return opaque(f"{name} with what isn't known before it runs")
    if not runs_text:
        return NOTHING
    return (
        opaque("$'...' in a text for sh") if "$'" in text and name not in ("bash", "rbash") else Effects(texts=(text,))
    )


def evaluate(name: str, words: Words) -> Effects:
    """``eval``: its words are one text."""
    texts = [word.text for word in words]
    if texts[:1] == ["--"]:
        texts = texts[1:]
    if None in texts:
        return opaque("eval of what isn't known before it runs")
    return Effects(texts=(" ".join(text for text in texts if text is not None),))


def trap(name: str, words: Words) -> Effects:
    texts = [word.text for word in words if word.text != "--"]
    if None in texts[:1]:
        return opaque("trap of what isn't known before it runs")
    if not texts or texts[0] is None or texts[0] in ("", "-", "-p", "-l"):
        return NOTHING
    return Effects(texts=(texts[0],))


def source(name: str, words: Words) -> Effects:
    if not words or words[0].text is None or words[0].text.startswith("-"):
        return opaque(f"{name} of a file that isn't known before it runs")
    return NOTHING


def declare(name: str, words: Words) -> Effects:
    """Sets variables: arithmetic (``-i``), references (``-n``) and lists from texts evaluate more than they show."""
    names, lists = list[str](), False
    for word in words:
        if word.text is not None and re.match(r"[-+]", word.text):
            if not re.fullmatch(r"[-+][aAfFgprxlu]*", word.text):
                return opaque(f"{name} {word.text}")
            lists |= "a" in word.text or "A" in word.text
            continue
        found = NAMED.match(word.source)
        if found is None:
            return opaque(f"{name} of a name that isn't known before it runs")
        names.append(word.text or word.source)
        value = word.source[found.end() :]
        if not found[2] or value.startswith("("):
            continue
        # A variable that is a list already, or becomes one here, gets its elements from the text, expansions included.
        known = "(" if word.text is None else word.text.partition("=")[2]
        if lists or (name not in ("export", "readonly") and known.startswith("(")):
            return opaque(f"{name} of a list from a text")
    return Effects(opaque=settings(names))


def names_set(flags: str, valued: str) -> Callable[[str, Words], Effects]:
    """For a builtin that sets the variables which it is told; ``flags`` and ``valued`` are its options."""

    def judge(name: str, words: Words) -> Effects:
        rest = list(words)
        while rest and rest[0].text is not None and rest[0].text.startswith("-"):
            option = rest.pop(0).text or ""
            if option == "--":
                break
            if match := re.fullmatch(rf"-[{flags}]*([{valued}])(.*)" if valued else r"(?!)", option, re.DOTALL):
                if not match[2] and (not rest or rest.pop(0).several):
                    return opaque(f"{name} of what isn't known before it runs")
            elif not re.fullmatch(rf"-[{flags}]+", option):
                return opaque(f"{name} {option}")
        return set_names(name, rest)

    return judge


def set_names(name: str, words: Words) -> Effects:
    """A builtin sets the variables that these words name."""
    names = [word.text for word in words]
    if any(text is None or not NAME.match(text) for text in names):
        return opaque(f"{name} of a name that isn't known before it runs")
    return Effects(opaque=settings([text for text in names if text is not None]))


def getopts(name: str, words: Words) -> Effects:
    if words and (words[0].text is None or words[0].text.startswith("-")):
        return opaque(f"{name} {words[0].source}")
    return set_names(name, words[1:2])


def printf(name: str, words: Words) -> Effects:
    """``-v`` and the format ``%n`` set a variable."""
    texts, judged = [word.text for word in words], NOTHING
    if texts[:1] == ["-v"] and len(words) > 1:
        judged, texts = set_names(name, words[1:2]), texts[2:]
    elif texts[:1] == ["--"]:
        texts = texts[1:]
    if judged.opaque or not texts:
        return judged
    if (form := texts[0]) is None:
        return opaque("printf with a format that isn't known before it runs")
    if form.startswith("-v"):
        return opaque("printf -v in another place than the first")
    return opaque("printf %n") if re.search(r"%[^A-Za-z%]*[hjlLtz]*n", form) else NOTHING


def test(name: str, words: Words) -> Effects:
    """``-v`` evaluates a subscript, so no word that isn't known may stand where an operator could."""
    texts = [word.text for word in words]
    if name == "[" and texts[-1:] == ["]"]:
        texts = texts[:-1]
    if {"-v", "-R"} & set(texts):
        return opaque(f"{name} -v")
    if None not in texts:
        return NOTHING
    if any(word.several for word in words):
        return opaque(f"{name} of words that aren't known before it runs (quote them)")
    if len(texts) in (2, 4) and texts[0] == "!":
        texts = texts[1:]
    plain = len(texts) == 1 or (len(texts) == 2 and texts[0] in UNARY) or (len(texts) == 3 and texts[1] in BINARY)
    return NOTHING if plain else opaque(f"{name} of words that aren't known before it runs")


def modes(name: str, words: Words) -> Effects:
    """``set``: what makes a shell stop at errors is harmless."""
    texts = [word.text for word in words]
    while texts:
        option = texts.pop(0)
        if option == "--":
            break
        if option is None or not re.match(r"[-+]", option):
            return NOTHING if option is not None else opaque("set of what isn't known before it runs")
        if re.fullmatch(r"[-+][euxfCv]*o", option):
            if not texts or texts.pop(0) not in HARMLESS_MODES:
                return opaque("set of another mode")
        elif not re.fullmatch(r"[-+][euxfCv]+", option):
            return opaque("set of another mode")
    return NOTHING


def only(*options: str) -> Callable[[str, Words], Effects]:
    """For a builtin that is harmless with these options alone."""

    def judge(name: str, words: Words) -> Effects:
        known = [word for word in words if not re.fullmatch(r'"?\$[!$?#]"?', word.source)]
        odd = [word for word in known if word.text is None or (word.text.startswith("-") and word.text not in options)]
        return opaque(f"{name} {odd[0].source}") if odd else NOTHING

    return judge


BUILTINS: dict[str, Callable[[str, Words], Effects]] = {
    "eval": evaluate,
    "trap": trap,
    "source": source,
    ".": source,
    "declare": declare,
    "typeset": declare,
    "local": declare,
    "export": declare,
    "readonly": declare,
    "unset": names_set("fv", ""),
    "read": names_set("ersa", "dinNptu"),
    "mapfile": names_set("t", "dnOsu"),
    "readarray": names_set("t", "dnOsu"),
    "getopts": getopts,
    "printf": printf,
    "test": test,
    "[": test,
    "set": modes,
    "hash": only("-r"),
    "jobs": only("-l", "-n", "-p", "-r", "-s"),
    "wait": only("-n", "-f"),
}
