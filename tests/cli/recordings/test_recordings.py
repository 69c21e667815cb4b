"""What the list of recordings says about their ends."""

from agentos.recordings.format import Life, Manifest
from agentos.userland.cli.recordings.recordings import describe_end
from tests.support.runs.rows import each_row

LIVED, LIVES = Life("a/1", "a", 1.0, ended=2.0, exit="exit status 1"), Life("a/1", "a", 1.0)


@each_row(
    ("manifest", "said"),
    [
        (Manifest(ended=3.0, lives=[LIVES, LIVED]), "exit status 1"),
        (Manifest(lives=[LIVES]), "goes on, or ended with the kernel"),
        (Manifest(ended=3.0, lives=[LIVES]), "stopped by the operator"),
        (Manifest(ended=3.0, reason="the recording is full", lives=[LIVED, LIVES]), "the recording is full"),
    ],
)
def test_a_recording_says_how_it_ended(manifest: Manifest, said: str) -> None:
    assert describe_end(manifest) == said
