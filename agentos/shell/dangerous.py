"""The commands that the default denials refuse: they destroy a machine, or give a process more rights.

A command is known by its base name: ``/bin/rm``, ``\\rm`` and ``busybox rm`` are ``rm``. The commands that the reader
finds behind ``env`` or in ``sh -c`` are judged as well. What a program does by its own files or by a text in another
language is not known here: the jail is the wall.

Roots are ``/`` and what lies directly in it (but for /tmp, /workspace and /agent), what holds the system one level
below (/usr/lib, /var/lib, ...), everybody's home, the home of whoever runs it, ``.``, ``..`` and ``*``, which are
whatever the last ``cd`` made of them, though not in a jail.
"""

import os.path
import re
from collections.abc import Callable, Sequence
from itertools import islice

from .reading import Command, Opaque, Reading, Word

Judge = Callable[[str, Sequence[Word]], str | None]

NOT_ROOTS = frozenset({"/workspace", "/agent", "/tmp"})
INNER_ROOTS = re.compile(
    r"/usr/(local|bin|sbin|lib\w*|share|include|libexec)|/var/(lib|log|spool|mail|www|cache)|/home/[^/]+"
)
HOME = re.compile(r"(~[^/]*|\$HOME|\$\{HOME\}|\$PWD|\$\{PWD\}|\$OLDPWD|\$\{OLDPWD\})(/+(\.{1,2}/*|\*|\.\*|\{.*\})?)*")
HERE = re.compile(r"(\.{1,2}/+)*(\.{1,2}|\*|\.\*|\.\[!?\^?\.\]\*)?/*(\*)?")
BLOCK_DEVICE = re.compile(
    r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|loop|dm-|md|sr|nbd|zd|ram|pmem|mtd|disk/|mapper/|block/|(mem|kmem|port)\Z|[*?\[])"
)
KERNEL_FILE = re.compile(r"/proc/(sys/|sysrq-trigger|[^/]*/(mem|oom_\w+)\Z)|/sys/|/boot/")
DEFINITION = re.compile(r"\bfunction[ \t]+([^\s(){}]{1,64})(?:[ \t]*\([ \t]*\))?|\([ \t]*\)")
MAX_FUNCTIONS = 200  # that are looked at: who hides one behind so many is not stopped by a filter
STOPS = frozenset({
    "poweroff", "reboot", "halt", "kexec", "rescue", "emergency", "suspend", "hibernate", "hybrid-sleep", "exit",
    "soft-reboot", "suspend-then-hibernate", "isolate", "default",
})  # fmt: skip
FETCH = frozenset({"curl", "wget", "fetch", "lynx", "aria2c"})
INTERPRETERS = re.compile(
    r"(ba|da|z|k|mk|fi|a|c|tc)?sh|python[0-9.]*|perl[0-9.]*|ruby[0-9.]*|node|php[0-9.]*|source|\.|eval"
)
FETCHED = re.compile(r"(?:[$<]\(|`)\s*(?:curl|wget)\b")

ALWAYS = {
    name: what
    for names, what in {
        "mkfs mke2fs mkswap wipefs blkdiscard fdisk sfdisk cfdisk gdisk sgdisk parted hdparm badblocks lvremove "
        "vgremove pvremove pvcreate mdadm cryptsetup": "formatting or partitioning a disk",
        "sudo sudoedit visudo doas su pkexec runuser sg newgrp setpriv capsh setcap": "becoming another user",
        "shutdown reboot halt poweroff kexec pm-suspend pm-hibernate": "stopping the machine",
        "insmod modprobe rmmod kmod": "changing the kernel's modules",
        "mount umount swapon swapoff losetup pivot_root": "changing what is mounted",
        "useradd userdel usermod adduser deluser groupadd groupdel groupmod passwd chpasswd chsh gpasswd vipw": (
            "changing users"
        ),
        "killall5": "killing every process",
        "setenforce aa-teardown aa-disable": "switching protections off",
    }.items()
    for name in names.split()
}


def danger(command: Command, at_home: bool = False) -> str | None:
    """What a simple command would destroy or take, in words; ``None`` where no default denial is about it.

    ``at_home``: its working directory is its jail's, so that ``.`` and ``*`` are no roots.
    """
    name = command.name
    if name in ALWAYS or name.startswith("mkfs."):
        return f"{ALWAYS.get(name, ALWAYS['mkfs'])} ({name})"
    if INTERPRETERS.fullmatch(name) and any(FETCHED.search(word.source) for word in command.words[1:]):
        return "running what comes from the network"
    words = [word for word in command.words[1:] if not (at_home and is_here(written(word)))]
    return JUDGES[name](name, words) if name in JUDGES else None


def danger_of_target(word: Word) -> str | None:
    """The same, of a file that is written to."""
    path = written(word)
    if BLOCK_DEVICE.match(path):
        return f"writing to a device ({word.source})"
    if KERNEL_FILE.match(path):
        return f"changing the running kernel ({word.source})"
    return None


def danger_of_reading(reading: Reading) -> str | None:
    """The same, of what only several commands together do."""
    bomb = fork_bomb(reading.code) if isinstance(reading, Opaque) else None
    return bomb or ("running what comes from the network" if any(map(is_fetched, reading.commands)) else None)


def is_fetched(command: Command) -> bool:
    """Whether it is an interpreter that reads its program from a command that gets it from the network."""
    reads = command.input in FETCH and INTERPRETERS.fullmatch(command.name) is not None
    other = command.name.startswith("python") and {"-c", "-m"} & {word.text for word in command.words}
    return reads and not other


def fork_bomb(code: str) -> str | None:
    """A function that starts itself in the background."""
    for found in islice(DEFINITION.finditer(code), MAX_FUNCTIONS):
        name = found[1] or code[max(0, found.start() - 64) : found.start()].rpartition(";")[2].split()[-1:]
        own = re.escape(name if isinstance(name, str) else "".join(name))
        body = first_group(code[found.end() : found.end() + 2000])
        if own and re.search(rf"[\s|&;({{]{own}(?:[ \t]*\|&?[ \t]*{own})*[ \t]*&(?![&>])", body):
            return f"a fork bomb (the function {own} starts itself)"
    return None


def first_group(text: str) -> str:
    """Up to where the first brace or parenthesis is closed; quotes are not looked at."""
    depth = 0
    for found in re.finditer(r"[(){}]", text):
        depth += 1 if found[0] in "({" else -1
        if depth <= 0:
            return text[: found.end()]
    return text


def written(word: Word) -> str:
    """A word's path as well as it can be told: its text, or its source without quotes."""
    path = word.source.replace('"', "").replace("'", "") if word.text is None else word.text
    return re.sub(r"/+", "/", path)


def is_here(path: str) -> bool:
    return path != "" and not path.startswith("/") and HERE.fullmatch(path) is not None


def is_root(word: Word) -> bool:
    path = written(word)
    if word.text is None and HOME.fullmatch(path):
        return True
    if not path.startswith("/"):
        return is_here(path)
    path = re.sub(r"/(\*|\.\*|\{\*,\.\*\})?$", "", path) if path != "/" else path
    path = os.path.normpath("/" + path.lstrip("/"))
    return path not in NOT_ROOTS and (path.count("/") == 1 or INNER_ROOTS.fullmatch(path) is not None)


def split(words: Sequence[Word]) -> tuple[list[str], list[Word]]:
    """Options and operands, as GNU's programs take them: in any order, up to ``--``."""
    options, operands = list[str](), list[Word]()
    for at, word in enumerate(words):
        if word.text == "--":
            return options, [*operands, *words[at + 1 :]]
        if word.text is not None and word.text.startswith("-") and word.text != "-":
            options.append(word.text)
        else:
            operands.append(word)
    return options, operands


def recursive(options: Sequence[str], operands: Sequence[Word]) -> bool:
    """Also where an option may hide in a word that isn't known."""
    spelled = any(re.fullmatch(r"-[^-]*[rR].*|--r[a-z]*", option) for option in options)
    return spelled or any(word.text is None and re.match(r"[\"']?[$`]", word.source) for word in operands)


def remove(name: str, words: Sequence[Word]) -> str | None:
    options, operands = split(words)
    if any(re.match(r"--no", option) for option in options):
        return "rm --no-preserve-root"
    root = next((word for word in operands if is_root(word)), None)
    if root is not None and recursive(options, operands):
        return f"removing all of {root.source}"
    return None


def change_all(name: str, words: Sequence[Word]) -> str | None:
    """chmod, chown, chgrp of a whole root; set-user-ID programs."""
    options, operands = split(words)
    root = next((word for word in operands[1:] if is_root(word)), None)
    if root is not None and recursive(options, operands):
        return f"{name} of all of {root.source}"
    modes = [word.text or "" for word in operands[:1]]
    if name == "chmod" and any(re.fullmatch(r"0*[2-7][0-7]{3}|.*[+=][rwxXt]*s.*", mode) for mode in modes):
        return f"a program that runs as its owner (chmod {modes[0]})"
    return None


def move(name: str, words: Sequence[Word]) -> str | None:
    root = next((word for word in split(words)[1][:-1] if is_root(word) and written(word).startswith("/")), None)
    return f"moving {root.source} away" if root is not None else copy(name, words)


def copy(name: str, words: Sequence[Word]) -> str | None:
    """Whatever writes to the files that it is told."""
    return next((found for word in split(words)[1][-1:] if (found := danger_of_target(word))), None)


def write_each(name: str, words: Sequence[Word]) -> str | None:
    return next((found for word in split(words)[1] if (found := danger_of_target(word))), None)


def dd(name: str, words: Sequence[Word]) -> str | None:
    outputs = [Word(written(word)[3:], word.source) for word in words if written(word).startswith("of=")]
    return next((found for word in outputs if (found := danger_of_target(word))), None)


def find(name: str, words: Sequence[Word]) -> str | None:
    """Its roots stand first."""
    texts = [word.text for word in words]
    roots = [word for word in words if is_root(word) and written(word).startswith(("/", "~", "$"))]
    removes = "-delete" in texts or any(text in ("rm", "/bin/rm", "/usr/bin/rm", "shred") for text in texts)
    narrowed = {"-name", "-iname", "-path", "-regex", "-wholename", "-empty"} & set(texts)
    return f"removing all of {roots[0].source}" if roots and removes and not narrowed else None


def kill(name: str, words: Sequence[Word]) -> str | None:
    texts = [word.text for word in words]
    if "-1" in texts[1:]:
        return "killing every process"
    return "killing the first process" if "1" in texts and "-l" not in texts else None


def init(name: str, words: Sequence[Word]) -> str | None:
    return "stopping the machine" if any((word.text or "") in ("0", "1", "6", "s", "S") for word in words) else None


def systemctl(name: str, words: Sequence[Word]) -> str | None:
    found = next((word.text for word in words if word.text in STOPS), None)
    return f"stopping the machine ({name} {found})" if found else None


def firewall(name: str, words: Sequence[Word]) -> str | None:
    options = {"-F", "-X", "-P", "-Z", "--flush", "--delete-chain", "--policy", "flush", "disable", "reset", "delete"}
    return "switching the firewall off" if any(word.text in options for word in words) else None


def crontab(name: str, words: Sequence[Word]) -> str | None:
    return None if [word.text for word in words] == ["-l"] else "changing what runs by itself (crontab)"


def history(name: str, words: Sequence[Word]) -> str | None:
    erases = any(re.match(r"-[a-z]*[cdw]", word.text or "") for word in words)
    return "erasing the shell's history" if erases else None


def sysctl(name: str, words: Sequence[Word]) -> str | None:
    sets = any(
        word.text is None or word.text.startswith(("-w", "-p", "--w", "--l", "--s")) or "=" in word.text
        for word in words
    )
    return "changing the running kernel (sysctl)" if sets else None


JUDGES: dict[str, Judge] = {
    "rm": remove,
    "chmod": change_all,
    "chown": change_all,
    "chgrp": change_all,
    "mv": move,
    "cp": copy,
    "install": copy,
    "tee": write_each,
    "shred": write_each,
    "truncate": write_each,
    "dd": dd,
    "find": find,
    "kill": kill,
    "init": init,
    "telinit": init,
    "systemctl": systemctl,
    "loginctl": systemctl,
    "iptables": firewall,
    "ip6tables": firewall,
    "nft": firewall,
    "ufw": firewall,
    "crontab": crontab,
    "history": history,
    "sysctl": sysctl,
}
