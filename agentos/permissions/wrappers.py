"""Commands that run the command behind their options."""

import re
from collections.abc import Sequence

from attrs import frozen

from .script import Word

Words = Sequence[Word]

MORE = Word(None, "...", several=True)  # what xargs adds
ASSIGNMENT = re.compile(r"([^=\"'$`]*)=")
# The options of xargs, where its input replaces a text: other options before that may take it for their value.
REPLACES = re.compile(
    r"(?:(?:-[0rtx]+|--null|--no-run-if-empty|-[dP] ?[^-\s]\S*) )*(?:(?:-I ?|--replace=)(\S+)|--replace)(?: --)?"
)


@frozen
class Behind:
    """Commands as words, texts for a shell, and the variables that are set for them (``NAME=value``).

    ``elsewhere``: in another directory or file system, where a path is another file.
    """

    commands: tuple[Words, ...] = ()
    texts: tuple[str, ...] = ()
    assigned: tuple[str, ...] = ()
    elsewhere: bool = False


@frozen
class Options:
    """What may stand between a wrapper and its command: options, with and without a value, then so many operands.

    ``assigns``: NAME=VALUE may come first. ``stops`` are options with which nothing is run.
    """

    flags: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    operands: int = 0
    assigns: bool = False
    stops: frozenset[str] = frozenset()


def options(
    flags: str = "",
    valued: str = "",
    long: str = "",
    long_valued: str = "",
    operands: int = 0,
    *,
    assigns: bool = False,
    stops: str = "",
) -> Options:
    return Options(
        flags,
        valued,
        frozenset(long.split()),
        frozenset(long_valued.split()),
        operands,
        assigns,
        frozenset(stops.split()),
    )


# fmt: off
WRAPPERS = {
    "env": options("0iv", "u", "ignore-environment null debug", "unset", assigns=True),
    "nice": options("", "n", "", "adjustment"),
    "ionice": options("t", "cn", "ignore", "class classdata"),
    "nohup": options(),
    "timeout": options("v", "ks", "preserve-status foreground verbose", "kill-after signal", 1),
    "xargs": options("0rtpxo", "adEInPLs",
                     "null no-run-if-empty verbose interactive exit open-tty eof replace max-lines",
                     "arg-file delimiter max-args max-procs max-chars"),
    "command": options("p", stops="-v -V"),
    "builtin": options(),
    "exec": options("cl", "a"),
    "time": options("p"),
    "setsid": options("cfw", "", "ctty fork wait"),
    "stdbuf": options("", "ioe", "", "input output error"),
    "sudo": options("AbEHknPS", "CDghpRrtTuU", "askpass background preserve-env set-home non-interactive stdin",
                    "user group host prompt chdir chroot", assigns=True, stops="-l -v -V -K --list"),
    "doas": options("Ln", "Cu"),
    "pkexec": options("", "", "disable-internal-agent keep-cwd", "user"),
    "chroot": options("", "", "skip-chdir", "userspec groups", 1),
    "unshare": options("mupnirUCTfc", "RwSG", "mount uts ipc net pid user cgroup time fork map-root-user kill-child",
                       "root wd setuid setgid"),
    "nsenter": options("amuinpUCTZFe", "tSGrw", "all mount uts ipc net pid user cgroup time", "target setuid setgid"),
    "strace": options("fFqvyxcCdhiknrtTwzZ", "eopsPEuaIbOSXU"),
    "ltrace": options("fSictT", "eopsuanlxAD"),
    "busybox": options(), "toybox": options(),
    "flock": options("sxneuoFv", "wE", "shared exclusive nonblock nb unlock close no-fork verbose", "wait timeout", 1),
    "watch": options("bcdegptx", "nq", "beep color differences errexit chgexit no-title precise exec", "interval"),
    "chrt": options("abfiormRd", "TPD", "", "", 1),
    "taskset": options("a", "", "", "", 1),
    "setarch": options("RBFILSTXZ3v", "", "", "", 0),
    "fakeroot": options(), "catchsegv": options(), "unbuffer": options("p"),
    "su": options(), "runuser": options(), "parallel": options(), "script": options(), "find": options(),
    "systemd-run": options(),
}
# fmt: on


ELSEWHERE = frozenset({"chroot", "nsenter", "unshare"})


def behind(name: str, words: Words) -> Behind | None:
    """What a wrapper runs; ``None`` where that can't be told."""
    match name:
        case "su" | "runuser":
            return substituted(words)
        case "find":
            return find(words)
        case "parallel" | "script" | "setarch":
            return None if words else Behind()
        case "env":
            words = split_string(words)
        case "nice" if words and re.fullmatch(r"--?[0-9]+", words[0].text or ""):
            words = words[1:]
    rest, assigned = list(words), list[str]()
    if not after_options(WRAPPERS[name], rest, assigned):
        return None
    if name == "xargs" and rest:
        command = inserted(words, rest)
        return None if command is None else Behind((command,))
    if name == "watch" and rest:
        texts = [word.text for word in rest]
        if None in texts:
            return None
        runs = any(re.match(r"-[^-]*x|--e", word.text or "") for word in words)  # and if it is only an argument, both
        return Behind((rest,) if runs else (), (" ".join(text for text in texts if text is not None),))
    if name == "flock" and rest and rest[0].text in ("-c", "--command"):
        return None if len(rest) != 2 or rest[1].text is None else Behind(texts=(rest[1].text,))
    return Behind((rest,) if rest else (), assigned=tuple(assigned), elsewhere=name in ELSEWHERE)


def after_options(known: Options, rest: list[Word], assigned: list[str]) -> bool:
    """Takes options, settings and operands off the words; whether all that is known."""
    while rest and (text := rest[0].text) is not None and text.startswith("-") and text != "-":
        if text in known.stops:
            rest.clear()
            return True
        if text == "--":
            rest.pop(0)
            break
        if not option(known, rest):
            return False
    operands = known.operands
    while rest:
        first = rest[0]
        setting = ASSIGNMENT.match(first.source if first.text is None else first.text) if known.assigns else None
        if first.several or (first.text is None and setting is None):
            return False
        if setting is not None:
            assigned.append(first.source if first.text is None else first.text)
        elif operands:
            operands -= 1
        else:
            break
        rest.pop(0)
    return True


def option(known: Options, rest: list[Word]) -> bool:
    """Takes one option, with its value, off the words; whether it is one that is known."""
    text = rest.pop(0).text or ""
    if text.startswith("--"):
        name, equals, _ = text[2:].partition("=")
        if name in known.long:
            return True
        if name not in known.long_valued:
            return False
        return bool(equals) or (bool(rest) and rest.pop(0).text is not None)
    for at, letter in enumerate(text[1:], 2):
        if letter in known.valued:
            return bool(text[at:]) or (bool(rest) and rest.pop(0).text is not None)
        if letter not in known.flags:
            return False
    return True


def split_string(words: Words) -> Words:
    """``env -S 'a b'`` is ``env a b``, where no quote or escape says otherwise."""
    for at, word in enumerate(words):
        found = re.fullmatch(r"(?:-[iv0]*S|--split-string=?)([\w ./=:,@%+-]*)", word.text or "")
        if found is None and re.fullmatch(r"-[iv0]+", word.text or ""):
            continue
        if found is None:  # a later -S may be the value of another option
            break
        given = found[1] or (words[at + 1].text if at + 1 < len(words) else None)
        if given is None or not re.fullmatch(r"[\w ./=:,@%+-]*", given):
            break
        rest = words[at + 1 :] if found[1] else words[at + 2 :]
        return [*words[:at], *(Word(part, part) for part in given.split(" ") if part), *rest]
    return words


def inserted(words: Words, found: Words) -> Words | None:
    """What ``xargs`` runs: its input stands where it was told to, or at the end; ``None`` where that can't be told."""
    texts = [word.text or "" for word in words[: len(words) - len(found)]]
    if not any(re.match(r"-[^-]*I|--r", text) for text in texts):
        return [*found, MORE]
    told = REPLACES.fullmatch(" ".join(texts))
    if told is None:
        return None
    replace = told[1] or "{}"
    return [Word(None, word.source) if word.text is not None and replace in word.text else word for word in found]


def substituted(words: Words) -> Behind | None:
    """``su``: the text behind ``-c``."""
    texts = [word.text for word in words]
    if None in texts:
        return None
    for at, text in enumerate(texts):
        if text in ("-c", "--command", "--session-command"):
            after = texts[at + 1] if at + 1 < len(texts) else None
            return None if after is None else Behind(texts=(after,))
        if text is not None and re.match(r"-[a-z]*c|--", text):
            return None
    return Behind()


def find(words: Words) -> Behind | None:
    """What ``find`` runs: the words from ``-exec`` to ``;`` or ``+``, a file's name standing for ``{}``."""
    commands, rest = list[Words](), list(words)
    while rest:
        word = rest.pop(0)
        if word.text is None:
            return None
        if word.text not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        command, before = list[Word](), ""
        while rest and (text := rest[0].text) != ";" and not (text == "+" and before == "{}"):
            part = rest.pop(0)
            if text is None:  # it may be what ends the command
                return None
            command.append(Word(None, part.source) if "{}" in text else part)
            before = text
        if command:
            commands.append(command)
    return Behind(tuple(commands), elsewhere=any(word.text in ("-execdir", "-okdir") for word in words))
