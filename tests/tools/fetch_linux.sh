#!/bin/sh
# Unpack user-mode Linux 6.12, of Debian 13, into the directory $1 without installing it. It runs with a libc of its own,
# which an older Debian lacks; apt-get checks the signatures by Debian's keys.
set -eu
mkdir -p "$1/apt/lists/partial" "$1/apt/cache/archives/partial"
cd "$1"
echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main' >apt/sources.list
apt() {
  apt-get -q -o Dir::Etc::SourceList="$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::State="$PWD/apt" \
    -o Dir::State::Status=/dev/null -o Dir::Cache="$PWD/apt/cache" -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@"
}
apt update
apt download user-mode-linux libc6
for package in ./*.deb; do
  dpkg-deb -x "$package" .
done
rm -r apt ./*.deb usr/share
# The loader is named by a path of 27 characters at most, relative to the directory in which the program is started. It
# isn't run as a program with linux.uml as its argument, since the heap of that lies elsewhere than linux.uml takes it for.
libraries=usr/lib/$(uname -m)-linux-gnu
sed 's|/lib64/ld-linux-x86-64.so.2|./ld-linux-x86-64.so.2\x00\x00\x00\x00\x00|' usr/bin/linux.uml >"$libraries/linux.uml"
chmod +x "$libraries/linux.uml"
cat >usr/bin/linux.uml <<END
#!/bin/sh
cd "$PWD/$libraries" && LD_LIBRARY_PATH=. exec ./linux.uml "\$@"
END
