"""Redaction of secrets (keys, tokens, passwords) in text, by their format and by the names before them. No I/O.

It removes the secrets that it recognizes, and can't recognize all. In doubt it removes: a false positive costs less
than a password in a log. No pattern takes more than linear time, because agents choose the text.
"""

import re
from collections.abc import Callable
from typing import TypeAlias

from .redaction_values import REDACTED, ValueFinder

Match: TypeAlias = "re.Match[str]"

# -- By format ---------------------------------------------------------------------------------------------------------

# Prefixes of keys and tokens of known vendors.
_KEY_PREFIXES = (
    r"[spr]k[-_]|ya29\.|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]-|xapp-|npm_|hf_|pypi-|xai-|gsk_|pplx-|r8_|whsec_"
    r"|hv[sb]\.|SG\.|do[opr]_v1_|figd_|lin_api_|dp\.[a-z]{2,5}\.|dckr_[po]at_|PMAK-|shp[a-z]{2}_|ntn_|ATATT3|NRAK-"
    r"|sntrys_|AGE-SECRET-KEY-1|tskey-"
)

_SECRET_FORMATS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A private key, also without its end.
    (re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(rf"\b(?:{_KEY_PREFIXES})[\w.-]{{15,}}\w"), REDACTED),
    (
        re.compile(r"\bAIza[\w-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\beyJ[\w-]{8,}\.[\w.-]{8,}|\bSK[0-9a-f]{32}\b"),
        REDACTED,
    ),
    # The URL of a webhook, which is a secret itself.
    (
        re.compile(
            r"((?:hooks\.slack\.com|discord(?:app)?\.com/api(?:/v\d{1,3})?/webhooks|webhook\.office\.com)/)[^\s\"']+"
            r"|(api\.telegram\.org/(?:file/)?bot)[^\s\"'/]+"
        ),
        rf"\1\2{REDACTED}",
    ),
    # https://user:password@host, https://token@host
    (re.compile(r"(://[^\s/:@]{0,200}:)[^\s/\"']+@"), rf"\1{REDACTED}@"),
    (re.compile(r"(://)[^\s/:@\"']{16,}(?=(?::[^\s/@\"']*)?@)"), rf"\1{REDACTED}"),
    # Authorization: Bearer ...; what follows the first word of such a header. The first word is matched by name below.
    (
        re.compile(
            r"(\b(?:authorization|cookie)\s{0,8}:\s{0,8}[^\s\"']{1,99}+[^\S\n]{1,8})(?:\\.|=\"[^\"\s]+\"|[^\"'\\\n])+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b((?:bearer|basic|digest)\s{1,8})[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1{REDACTED}"),
)

# -- By name -----------------------------------------------------------------------------------------------------------

# Names of secret values: API_KEY, githubToken, db-password, SECRET_KEY_BASE. Not max_tokens, monkey.
_NAME_PATTERNS = (
    r"(?i:passw(?:or)?d?|passphrase|passcode|secret|token(?!s|iz)|credential|authorization|signature|account[_.-]?key)"
    r"|(?i:(?:api|access|private)[_.-]?key)"
    r"|(?i:(?:^|[_.-])(?:keys?|pass|pwd|auth|cookie(?!-jar)|sig|bearer)(?![a-z]))"
    r"|(?i:(?:db|pg|sql|ssh|user|root|admin|mail|smtp)(?:pass|pwd)(?![a-z]))"
    r"|[a-z](?:Key|Pass|Pwd|Auth|Cookie|Sig)(?![a-z])"
)
_SECRET_NAME = re.compile(_NAME_PATTERNS)
_SECRET_NAME_SUFFIX = re.compile(rf"(?:{_NAME_PATTERNS})\Z")
_QUOTE = r"""(?:["']{3,40}+|\\{0,8}["'])?"""
_WORD_START = r"(?<![^\s\"'(\[,])"  # a word begins here

# Options that take a secret and don't say so in their name.
_SECRET_OPTIONS = r"|".join(
    rf"(?:{programs})(?:[ \t]++[^\s;&|]++){{0,20}}?[ \t]++{option}"
    for programs, option in {
        r"mysql\w*+|mariadb[\w-]*+|7z\w?": r"-p(?=\S)",
        r"(?:docker|podman|buildah|skopeo|registry|oras|az)[ \t]++login|mongo\w*+": r"-p[ \t]*+(?!\d+:\d)",
        r"(?:un)?zip|sqlcmd": r"-P[ \t]*+",
        r"redis-cli": r"-a[ \t]*+",
        r"ldap\w++": r"-w[ \t]*+",
        r"curl": r"-b[ \t]*+(?=[^\s;&|]*=)",
        r"htpasswd": r"-\w*b\w*[ \t]++\S++[ \t]++\S++[ \t]++",
        r"openssl": r"-(?:[kK]|hmac)[ \t]++",
        # scott/password@database, of Oracle's programs
        r"sqlplus|sqlcl|sqlldr|expdp|impdp|rman": r"(?:userid=)?[\"']?[\w$#]{1,64}/(?=[^\s/@])",
    }.items()
)
_SPACE = r"(?:\s|\\[nrt]){1,8}"  # also as in an argument of printf
_IDENTIFIED_BY = r"identified\s{1,8}(?:(?:with|using)\s{1,8}\S{1,64}+\s{1,8})?by\s{1,8}(?:(?:password|values)\s{1,8})?"

# Secrets in SQL, ALTER USER ... PASSWORD '...' and IDENTIFIED BY '...', and in a .netrc.
_SQL_AND_NETRC = r"|".join(
    (
        r"(?:alter|create)\s{1,8}(?:user|role|login|group)\b[^;]{0,200}?\bpassword\s{1,8}(?!null\b|expire\b)(?=\S)",
        rf"(?:(?:alter|create)\s{{1,8}}(?:user|role)|grant)\b[^;]{{0,200}}?\b{_IDENTIFIED_BY}(?=\S)",
        rf"{_IDENTIFIED_BY}(?=\\{{0,8}}[\"'])",
        r"set\s{1,8}password\s{1,8}for\s{1,8}[^;=]{1,200}?=\s{0,8}(?:password\s{0,8}\(\s{0,8})?(?=\S)",
        r"conn(?:ect)?\s{1,8}[\w$#]{1,64}+/(?=[^\s/@]{1,128}@)",
        rf"(?:machine{_SPACE}[^\s\\]{{1,200}}+|default)(?:{_SPACE}(?:login|account){_SPACE}[^\s\\]{{1,200}}+){{0,2}}"
        rf"{_SPACE}passw(?:or)?d{_SPACE}",
    )
)


def _is_secret_name(match: Match) -> bool:
    """Whether the name is that of a secret; a path before a colon isn't: ``-v /etc/passwd:/etc/passwd``."""
    is_path = ":" in match[2] and match.string[max(0, match.start() - 1)] in "/@"
    return _SECRET_NAME.search(match[1]) is not None and not is_path


def _is_compound_secret_name(match: Match) -> bool:
    """Whether the name ends with that of a secret and has several words: ``aws_secret_access_key``."""
    name = match[1]
    return (not name.isalpha() or name[1:] != name[1:].lower()) and _SECRET_NAME_SUFFIX.search(name) is not None


def _always(match: Match) -> bool:
    return True


# What precedes a secret, and a test whether it does; the first group is the name or word before the value.
_SECRET_LEADS: tuple[tuple[re.Pattern[str], Callable[[Match], bool]], ...] = (
    # password=..., API_KEY: "...", {"secret": "..."}
    (re.compile(rf"(?<![\w.-])([\w.-]++)({_QUOTE}\s{{0,8}}(?:[=:]{{1,2}}+>?)\s{{0,8}})"), _is_secret_name),
    # --token ..., and as a list: "--token", "..."
    (re.compile(rf"{_WORD_START}(--?[\w.-]++)({_QUOTE},?\s{{1,8}})"), _is_secret_name),
    # -u user:password; not the user and the group of a container
    (
        re.compile(
            rf"{_WORD_START}(?:-u|--user|--proxy-user)[\s=]?{_QUOTE}"
            r"(?!\d+:\d+(?![^\s\"'])|git@)([^\s:=/\"';&|-][^\s:=/\"';&|]*+)(:)(?!//|\1(?![^\s\"']))"
        ),
        _always,
    ),
    (re.compile(rf"(?<![\w.-])(sshpass[ \t]++-p[ \t]*+|{_SECRET_OPTIONS})"), _always),
    (re.compile(rf"(?<![\w.-])(?:{_SQL_AND_NETRC})", re.IGNORECASE), _always),
    # kubectl create secret generic NAME --from-literal=KEY=...
    (re.compile(rf"{_WORD_START}--from-literal[=\s]{_QUOTE}([\w.-]{{1,253}}+)(=)"), _always),
    # echo password | sudo -S
    (
        re.compile(
            r"(?<![\w.-])(?:echo|printf)(?:[ \t]++-\w++)?[ \t]++"
            r"(?=[^|\n]{1,200}+\|[^|\n]{0,80}?(?:sudo\s++-S|passwd\s++--stdin|-password-stdin))"
        ),
        _always,
    ),
    # aws configure set aws_secret_access_key ...
    (
        re.compile(
            r"(?<![\w.-])([\w.-]++)(\s{1,8})(?=\S{0,99}(?:\d|[a-z][A-Z]))(?![0-9a-f]{8}-[0-9a-f]{4}-)"
            r"(?=[A-Za-z0-9+_=][A-Za-z0-9+/_=-]{15,}+(?![^\s\"';&|)]))"
        ),
        _is_compound_secret_name,
    ),
    # A long value after such a word: "the token is 0f3a..."
    (
        re.compile(
            r"(?i)\b((?:key|token|secret|password|credentials?)\b[^\w]{1,3}(?:[a-z]{1,6}[^\w]{1,3}){0,2})"
            r"(?=[A-Za-z0-9+/_=-]{20})(?=[A-Za-z0-9+/_=-]{0,99}\d)"
        ),
        _always,
    ),
)


# <password>...</password>; not <key>, which property lists have before each value.
_ELEMENT = re.compile(r"(<([\w.:-]{1,64}+)(?:\s[^<>]{0,200})?>(?:<!\[CDATA\[)?)[^<]{1,2000}+(?=<\\?/\2\s{0,8}>)")
_USER = re.compile(r"(?<![\w.-])([\w.-]++)(:)(?=\S)")


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret: ``api_key``, ``password``."""
    return _SECRET_NAME.search(name) is not None


def redact(text: str) -> str:
    """The text with ``[redacted]`` in place of recognized secrets."""
    for pattern, instead in _SECRET_FORMATS:
        text = pattern.sub(instead, text)
    text = _ELEMENT.sub(_redact_element, text)
    for lead, is_secret in _SECRET_LEADS:
        if lead.search(text) is not None:
            text = _redact_values(text, lead, is_secret)
    return _redact_values(text, _USER, _always) if "chpasswd" in text else text  # echo user:password | chpasswd


def _redact_element(match: Match) -> str:
    is_secret = match[2].lower() not in ("key", "keys") and _SECRET_NAME.search(match[2]) is not None
    return f"{match[1]}{REDACTED}" if is_secret else match[0]


def _redact_values(text: str, lead: re.Pattern[str], is_secret: Callable[[Match], bool]) -> str:
    """Redact the values after ``lead``; a value isn't searched for others, and a non-secret doesn't hide a secret."""
    values, kept, done = ValueFinder(text), [], 0
    for match in lead.finditer(text):
        begin = match.end()
        if match.start() < done or not is_secret(match):
            continue
        is_joined = lead.groups > 1 and match[2] in ("=", ":")
        end = values.end(begin, match.start(1) if is_joined else None)
        if end > begin:
            kept += [text[done:begin], REDACTED]
            done = end
    return "".join([*kept, text[done:]])
