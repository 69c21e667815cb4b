"""Dockerfiles, the directory that they are built from, and their base: small, and together of all instructions."""

import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.images import LINK, copy_programs, entry, make_root

PROGRAMS = ("ln", "chown", "mv", "cp", "touch", "env", "sort", "bash")


def make_base(root: Path) -> Path:
    """A root with a shell, accounts, and directories and links to copy into."""
    root.mkdir()
    copy_programs(root, *PROGRAMS)
    make_root(root)
    with open(root / "etc" / "passwd", "a", encoding="ascii") as file:
        file.write("app:x:1234:1235::/home/app:/bin/sh\n")
    with open(root / "etc" / "group", "a", encoding="ascii") as file:
        file.write("app:x:1235:\nstaff:x:50:\n")
    (root / "home" / "app").mkdir(parents=True)
    os.chown(root / "home" / "app", 1234, 1235)
    (root / "srv" / "private").mkdir(mode=0o700)
    (root / "srv" / "mine").write_text("mine\n")
    os.chown(root / "srv" / "mine", 1234, 50)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    os.symlink("/srv/data", root / "data")
    return root


def make_context(place: Path) -> Path:
    """The directory; its files belong to several users."""
    for directory in ("app/sub", "app/.hidden", "app/empty", "docs/deep", "modes/open", "build"):
        (place / directory).mkdir(parents=True)
    for path in (
        *("a.txt", "b.txt", "c.md", "two words.txt", "ünï.txt", "app/main.py", "app/sub/more.py"),
        *("app/.hidden/x", "docs/a.md", "docs/deep/b.md", "docs/keep.md", "docs/deep/c.txt", "modes/plain"),
        *("modes/set", "modes/open/x", "build/out.o", "build/keep.o", "secret.key", "$dollar.txt"),
    ):
        (place / path).write_text(f"{path}\n")
        (place / path).chmod(0o644)
    (place / "app" / "main.py").chmod(0o755)
    (place / "a.txt").chmod(0o600)
    (place / "modes" / "open").chmod(0o1777)
    os.chown(place / "b.txt", 1234, 1235)
    (place / "modes" / "set").chmod(0o4755)
    os.symlink("main.py", place / "app" / "link")
    os.symlink("sub", place / "app" / "dirlink")
    os.symlink("/nowhere", place / "app" / "dangling")
    os.symlink("a.txt", place / "link.txt")
    os.symlink("app", place / "applink")
    for name, kind in (("files.tar", "w"), ("files.tar.gz", "w:gz"), ("files.tar.bz2", "w:bz2")):
        with tarfile.open(place / name, kind) as tar:  # type: ignore[call-overload]
            _fill(tar)
    (place / "files.tar.xz").write_bytes(lzma.compress((place / "files.tar").read_bytes()))
    (place / "plain.gz").write_bytes(b"\x1f\x8bno archive")
    (place / ".dockerignore").write_text("# what isn't copied\n*.key\nbuild/*\n!build/keep.o\n**/*.md\n!docs/keep.md\n")
    return place


def _fill(tar: tarfile.TarFile) -> None:
    entries = (
        entry("in/", mode=0o750, uid=7, gid=8),
        entry("in/file", b"packed\n", mode=0o640, uid=1234, gid=50),
        entry("in/link", kind=LINK, target="file"),
        entry("in/set", b"set\n", mode=0o4711),
    )
    for info, content in entries:
        tar.addfile(info, io.BytesIO(content))


DOCKERFILES: Mapping[str, str] = {
    "files to directories and names": """
        FROM base
        COPY a.txt /srv/
        COPY b.txt /srv/renamed
        COPY a.txt b.txt /new/place/
        WORKDIR /w
        COPY a.txt .
        COPY a.txt ./below/
        COPY a.txt relative/name
        COPY ünï.txt /names/
        COPY ["two words.txt", "/names/three words"]
    """,
    "directories": """
        FROM base
        COPY app /one
        COPY app/ /two/
        COPY app docs /three/
        COPY app/sub /srv/data
        COPY . /all
        COPY modes /srv/private
        COPY app/. /dot/
        COPY app/empty /empty
    """,
    "owners and modes": """
        FROM base
        COPY --chown=app a.txt /o/name
        COPY --chown=app:staff a.txt /o/group
        COPY --chown=7 a.txt /o/number
        COPY --chown=7:staff app /o/tree
        COPY --chown=app:app a.txt /deep/er/name
        COPY --chmod=0640 a.txt app /m/
        COPY --chmod=711 --chown=1:2 app/sub /m/sub
        COPY --chown=app:app app/sub /srv/data
        ADD --chown=app --chmod=600 a.txt /o/added
    """,
    "from stages and images": """
        FROM base AS one
        RUN mkdir -p /out/sub && echo 1 > /out/one && echo 2 > /out/sub/two && chown 1234:50 /out/one /out/sub
        RUN chmod 4755 /out/sub/two && ln -s one /out/link && ln -s /out/sub /way && chmod 2770 /out/sub
        FROM base
        COPY --from=one /out /copied
        COPY --from=0 /out/one /out/link /single/
        COPY --from=one --chown=7:8 /out /given
        COPY --from=one /way/two /by-link
        COPY --from=one out/o* /wild/
        COPY --from=base /home /homes
    """,
    "archives": """
        FROM base
        ADD files.tar /plain/
        ADD files.tar.gz /gz
        ADD files.tar.bz2 /bz2/
        ADD files.tar.xz /xz/
        COPY files.tar.gz /copied/
        ADD plain.gz a.txt /kept/
        ADD app /added/
        ADD --chown=7:8 files.tar /chowned/
    """,
    "environment": """
        FROM base
        ENV ONE=1 TWO="two words" THREE=a\\ b FOUR='$ONE'
        ENV OLD style  with   spaces
        ENV FIVE=${ONE}x$TWO SIX=${NONE:-default} SEVEN=${ONE:+set} EIGHT=\\$ONE NINE="q\\"uote" TEN=
        ENV ONE=changed ELEVEN=$ONE
        ENV TWELVE=$ONE PATH=/opt/bin:$PATH
        ENV THIRTEEN='a"b' FOURTEEN="it's" FIFTEEN="\\$x" SIXTEEN=a=b=c SEVENTEEN="tab\\there"
        RUN echo "$ONE|$TWO|$THREE|$FOUR|$OLD|$FIVE|$SIX|$SEVEN|$EIGHT|$NINE|$TEN|$ELEVEN|$TWELVE|$PATH" > /env
        COPY a.txt /$TWELVE/${SIX}/
    """,
    "arguments": """
        ARG BASE=base
        ARG GLOBAL=g
        FROM $BASE AS one
        ARG GLOBAL
        ARG LOCAL=l
        ARG EMPTY
        ARG MIX=${LOCAL}-$GLOBAL
        RUN echo "$GLOBAL|$LOCAL|$EMPTY|$MIX" > /args
        ENV LOCAL=env
        RUN echo "$LOCAL" >> /args
        FROM ${BASE:-none}
        ARG GLOBAL=own
        RUN echo "$GLOBAL|$LOCAL" > /args
        COPY --from=one /args /args-of-one
        ENV KEPT=$GLOBAL
    """,
    "directories to work in": """
        FROM base
        WORKDIR /one
        WORKDIR two
        ENV D=three
        WORKDIR $D/../four
        RUN pwd > pwd
        WORKDIR /data
        COPY a.txt .
        RUN echo x > here
        WORKDIR /with space
        RUN echo y > y
        USER app
        WORKDIR /made/as/app
        WORKDIR /home/app
    """,
    "users": """
        FROM base
        RUN mkdir /open && chmod 777 /open
        USER app
        RUN touch /open/file && mkdir /open/dir
        COPY a.txt /open/copied
        USER 7
        RUN touch /open/seven
        USER 7:50
        RUN touch /open/staff
        USER root
        RUN id -u > /open/root && chown app:staff /open/root
        USER app:staff
    """,
    "shells and forms": """
        FROM base
        RUN ["sh", "-c", "echo $1 exec > /exec", "0", "1"]
        SHELL ["/bin/bash", "-ec"]
        RUN [[ a == a ]] && echo bash > /bash
        RUN echo "[ $0 ]" > /zero; : [
        SHELL ["/bin/sh", "-c"]
        CMD echo  two   spaces
    """,
    "commands in the exec form": """
        FROM base
        CMD first
        CMD ["a", "b c", "d\\"e"]
        USER app
        WORKDIR /srv
    """,
    "patterns": """
        FROM base
        COPY *.txt /all/
        COPY ?.txt /single/
        COPY [ab].txt /class/
        COPY [^a].txt /not/
        COPY a* /dirs/
        COPY app/s* app/*.py /below/
        COPY d*/d* /two/
        COPY ap*/*.py build/*.o /none/
        ADD file*.gz /unpacked/
    """,
    "links": """
        FROM base
        COPY link.txt /by/file
        COPY applink /by/dir
        COPY app /kept
        COPY a.txt /data/
        COPY app/sub /data
        COPY a.txt /sbin/in-bin
        RUN ln -s /nowhere /srv/broken && ln -s ../srv/mine /etc/mine
        COPY b.txt /etc/mine
        COPY applink/link /by/inner
    """,
    "continued lines": """
        # a comment
        FROM base

        RUN echo one \\
            # in the middle
            && echo two \\

            && echo three > /lines
        RUN echo 'a  b' \\
        c > /joined
        ENV A=1 \\
            B=2   \\
            C="x \\
        y"
        run echo low > /low
        COPY a.txt \\
             b.txt \\
             /lots/
        RUN echo "# no comment" > /hash
    """,
    "another escape character": """
        # escape=`
        FROM base
        RUN echo a `
          b > /back
        COPY a.txt `
          /x/
    """,
    "what is ignored": """
        FROM base
        COPY docs /docs
        COPY build /build
        COPY . /all/
        COPY docs/* /star/
    """,
    "changes by programs": """
        FROM base
        RUN rm -r /srv/data && mkdir /srv/data && touch /srv/data/new
        RUN mv /srv/mine /srv/moved && chmod 4711 /srv/moved && chmod 2775 /srv/private
        RUN ln /srv/name /srv/hard && echo more >> /srv/hard
        RUN cp -a /home/app /home/copy && chown -R 99:98 /home/copy
        RUN rm /sbin && mkdir /sbin && touch /sbin/x && ln -sfn /etc /data
        RUN mkdir -p /a/b/c && chmod 000 /a/b && chown 3:4 /tmp
        RUN rm -r /a && echo file > /a
        RUN umask 077 && mkdir /dark && echo x > /dark/x
    """,
    "directories over others": """
        FROM base
        COPY app/sub /srv/private
        COPY modes/open /srv/data
        COPY modes/open /opened
        COPY modes/open /opened2/
        COPY app /merge
        COPY docs /merge
        COPY app /merge/
        RUN mkdir -m 711 /kept
        COPY modes /kept/
    """,
    "set-id bits": """
        FROM base
        COPY modes /copied
        COPY modes/set /single
        ADD modes/set /added
        COPY --chown=app modes/set /chowned
        COPY --chmod=0755 modes/set /plain
    """,
    "stages that go on": """
        FROM base AS common
        ENV A=a
        WORKDIR /common
        USER app
        FROM common AS unused
        RUN exit 1
        FROM common
        COPY --from=common /home /home2
        RUN pwd > /tmp/pwd
        ENV B=$A
        CMD ["x"]
    """,
}
# buildah of Debian 12 has no heredocs: it builds the second text.
WITHOUT_HEREDOCS: Mapping[str, tuple[str, str]] = {
    "heredocs": (
        'FROM base\nARG V=v\nRUN <<EOF\necho $V > /one\n  echo "$V  x" >> /one\nEOF\n'
        "RUN <<-'X' cat > /two\n\ttabs\n\t\t$V\nX\n"
        "COPY <<a <<\"b\" /files/\n$V '$V' \\$V\na\n$V\nb\nCOPY --chmod=750 --chown=app <<s /s\n#!/bin/sh\ns\n"
        "RUN bash <<E\necho $0 > /three\nE\nRUN <<E\n#!/bin/bash\n[[ x ]] && echo y > /four\nE\n",
        "FROM base\nRUN echo v > /one; echo 'v  x' >> /one\nRUN echo tabs > /two; echo '$V' >> /two\n"
        "RUN mkdir /files; echo \"v 'v' \\$V\" > /files/a; echo '$V' > /files/b\n"
        "RUN echo '#!/bin/sh' > /s; chmod 750 /s; chown app:app /s\nRUN echo /bin/sh > /three; echo y > /four\n",
    ),
}
