"""Is what was printed what the page shows? See the package's docstring for what is not compared."""

import re
from collections.abc import Sequence

ANY = "..."
LACKS = re.compile(r"\w+ (not limited|doesn't stand)(: .*)?")  # what an agent was to have, and this host has not
MASKS = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r'"(id|pid|agent_id|from_id|delivered_to|parent|uptime_ms|at|sent_at|seq|age_ms)": [\d.]+', r'"\1": N'),
    (r"\b(id|pid|agent) \d+", r"\1 N"),
    (r'"boot": "[0-9a-f]{8}"', '"boot": "HASH"'),
    (r"#\d+", "#N"),
    (r"\b(\w+)-[0-9a-f]{8}\b", r"\1-HASH"),
    (r"^\d+(?=\s)", "N"),
    (r"\b\d+(\.\d+)?(ms|s)\b", "SPAN"),
    (r"\b(\d+[smhd]){1,2}\b", "SPAN"),
    (r"\d+\.\d+", "N"),
    (r"\d{2,}", "N"),
    (r"[ \t]+", " "),
)


def masked(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, stand_in in MASKS:
        line = re.sub(pattern, stand_in, line)
    return line.strip()


def pattern_of(line: str) -> str:
    return ".*".join(re.escape(masked(part)) for part in line.split(ANY)) if ANY in line else re.escape(masked(line))


def same(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether all that was printed is what is shown."""
    pattern = "".join("(?:.*\n)*?" if line.strip() == ANY else pattern_of(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(masked(line) + "\n" for line in printed)) is not None


def missing(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """The lines shown that were not printed; each line printed counts for one."""
    left = [masked(line) for line in printed]
    absent = []
    for line in shown:
        if line.strip() in ("", ANY):
            continue
        found = next((there for there in left if re.fullmatch(pattern_of(line), there)), None)
        if found is None:
            absent.append(line)
        else:
            left.remove(found)
    return absent
