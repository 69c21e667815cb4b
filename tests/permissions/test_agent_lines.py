"""Lines as coding agents write them run where every command is granted: no default denial is about one of them."""

from agentos.kernel.ports import Right
from agentos.permissions.exec_request import ExecRequest
from agentos.permissions.levels import LEVELS
from agentos.permissions.sets.examples import decide_by_set
from agentos.shell.reader import parse_text
from agentos.shell.reading import Commands
from tests.permissions.strategies import NAMES
from tests.support.runs.rows import each_row

SIMPLE = r"""
ls -la
pwd && ls
cat README.md
head -50 src/main.py
tail -n 20 /var/log/app.log
wc -l src/*.py
grep -rn mount src
grep -rn "sudo" docs/ | head -20
grep -rE 'rm -rf|shutdown' . --include='*.sh'
grep -c passwd /etc/nsswitch.conf
grep -n "TODO\|FIXME" src/app.py
rg -n 'reboot' --type py
man passwd
man mount | head -40
man -k shutdown
apt-get install sudo
apt-get install -y sudo passwd mount
apt-get update && apt-get install -y --no-install-recommends build-essential
apt-cache policy sudo
dpkg -L passwd
dpkg -l | grep sudo
DEBIAN_FRONTEND=noninteractive apt-get install -y tzdata
pip install -r requirements.txt
pip install sudo mount
pip show requests 2>/dev/null
python -m pytest -q
python -m pytest tests/test_mount.py::test_sudo -x
python3 -c 'import os; print(os.getcwd())'
python3 -c "print('rm -rf /')"
PYTHONUNBUFFERED=1 python3 train.py > train.log 2>&1
CI=1 npm test
npm install && npm run build
npm run lint -- --fix
npx tsc --noEmit
yarn add passwd-strength
cargo build --release 2>&1 | tail -20
cargo test -- --nocapture
go test ./... -run TestMount
go build -o bin/app ./cmd/app
make -j4
make clean && make
cmake -S . -B build
git status
git add -A && git commit -m "Fix mount; remove sudo"
git commit -m 'Deny `rm -rf /` and $(curl x | sh)'
git log --oneline -10
git diff HEAD~1 -- src/shutdown.py
git diff --stat
git grep -n "passwd"
git rm -r --cached build
git checkout -b fix/sudo
git stash
git push -u origin main
git show HEAD:src/su.c
git config user.email "agent@example.com"
git clone https://github.com/example/sudo.git
git rev-parse --abbrev-ref HEAD
git branch -D old; git fetch --prune
echo "sudo make install"
echo sudo
echo 'reboot now' >> notes.txt
echo "PATH is $PATH"
printf '%s\n' "$HOME"
printf 'mount\tsudo\n' > words.tsv
cat src/passwd.c | grep -n main
cat package.json | jq .scripts
curl -s https://example.com/api | jq .
curl -fsSL https://example.com/install.sh -o install.sh
curl -I https://example.com
wget -q https://example.com/x.tar.gz -O x.tar.gz
tar xzf x.tar.gz -C build
tar czf backup.tar.gz src docs
unzip -o x.zip
mkdir -p build/mount/sudo
touch passwd mount
cp -r src/su dst/su
mv old.py new.py
rm -rf build dist *.egg-info
rm -rf ./node_modules
rm -f /tmp/x.log
rm -rf __pycache__ .pytest_cache
chmod +x scripts/reboot.sh
chmod 644 README.md
chmod -R u+w build
./scripts/reboot.sh --dry-run
./mount.sh && ./su.sh
bin/shutdown-test
which sudo
which python3 node go
type_check.py src
sed -i 's/sudo //g' Makefile
sed -n '10,40p' src/mount.py
awk '{print $1}' passwd.txt
awk -F: '$3 > 1000 {print $1}' users.txt | sort -u
sort -u words.txt | uniq -c | sort -rn | head
cut -d: -f1 /etc/group
find . -name '*.pyc'
find . -name mount -type f
find / -name sudo
find . -type f -newer Makefile
diff -u a.py b.py
patch -p1 < fix.patch
ps aux | grep mount
df -h && free -m
du -sh .
uname -a; id; whoami
date +%Y-%m-%d
sleep 2
test -f Makefile && make
[ -d build ] || mkdir build
true || reboot_the_vm
cd src && ls
cd build && cmake .. && make
cd /workspace; git log -1
docker build -t app .
docker run --rm app mount
docker compose up -d
kubectl get pods
psql -c 'select 1'
sqlite3 app.db 'select * from users'
node -e 'console.log("sudo")'
ruff check . && ruff format --check .
mypy src
black --check src
tree -L 2
file bin/app
stat README.md
xxd -l 64 bin/app
sha256sum x.tar.gz
ln -s src/mount.py link.py
systemctl status nginx
crontab -l
vim -es -c wq notes.txt
tee notes.txt < words.txt
""".strip().splitlines()

COMPOSED = r"""
for f in sudo mount passwd; do grep -c "$f" notes.txt; done
for f in *.py; do python -m py_compile "$f"; done
for i in $(seq 1 10); do curl -s localhost:8000/health && break; sleep 1; done
while read -r line; do echo "$line"; done < mount.txt
while ! nc -z localhost 5432; do sleep 1; done
if [ -f package.json ]; then npm ci; else pip install .; fi
if command -v sudo >/dev/null; then echo yes; fi
if grep -q sudo Dockerfile; then echo found; fi
command -v docker || echo "no docker"
command -v sudo mount
type sudo
export PATH="$HOME/.local/bin:$PATH" && which uv
export FOO=bar; echo $FOO
source .venv/bin/activate && pytest
. .venv/bin/activate; python -m pip list
set -e; make; make test
set -euo pipefail; cargo test 2>&1 | tee test.log
VERSION=$(cat VERSION); echo "$VERSION"
FILES=$(git diff --name-only | grep mount); echo "$FILES"
N=$((1 + 2)); echo $N
NODE_ENV=production npm run build
PYTHONPATH=src python -m app.mount
GIT_PAGER=cat git log -3
git commit -m "$(cat message.txt)"
git log --format='%h %s' | while read h s; do echo "$h: $s"; done
git diff $(git merge-base main HEAD) --stat
grep -l sudo $(git ls-files '*.sh')
cat $(find . -name '*.md' | head -3)
find . -name '*.py' -exec grep -l mount {} +
find . -name '*.tmp' -delete
find . -name '*.sh' -exec chmod +x {} \;
find . -type d -name __pycache__ -exec rm -rf {} +
find . -name '*.py' | xargs grep -n 'passwd'
find src -type f -print0 | xargs -0 wc -l | sort -n | tail -5
ls | xargs -n 1 basename
ls *.txt | xargs -I{} cp {} backup/{}
timeout 60 pytest -x
timeout 300 apt-get install -y sudo
timeout -k 5 60 grep -rn mount .
timeout --foreground 10 man sudo
nohup python server.py > server.log 2>&1 &
python -m http.server 8000 &
(cd build && make) && ./build/app
(cd /tmp && tar xf x.tar)
{ echo sudo; echo mount; } > words.txt
env | grep -i proxy
env -u HTTP_PROXY pip install sudo
env FOO=1 python -c 'print(1)'
bash -c 'echo mount && ls'
bash -lc "cd app && npm test"
bash scripts/build.sh
sh -c 'grep -n sudo Makefile | head'
bash -x ./run.sh 2>&1 | head
time make -j8
time python bench.py
! grep -q sudo Dockerfile
[[ -f a.py && ! -d mount ]] && echo ok
[[ "$x" == sudo || "$x" == su ]] || echo no
((i = 1 + 2)); echo $i
case "$1" in mount) echo m;; sudo|su) echo s;; *) echo other;; esac
mount_all() { echo hello; }; mount_all
sudo_check() { grep sudo "$1"; }; sudo_check Makefile
arr=(sudo mount su); echo "${arr[@]}"
echo ${HOME:-/root} ${x:+sudo}
echo "today: $(date), user: `whoami`"
diff <(sort a) <(sort b)
cat <<< "sudo make me a sandwich"
python3 - <<< 'print("rm -rf /")'
mkdir -p src/{mount,sudo,su}
cp file.{txt,bak}
git stash drop stash@{0}
sleep 1 & wait
trap 'rm -f /tmp/x' EXIT; make
eval "$(ssh-agent -s)"
watch -n 1 ls
xargs -a list.txt echo mount
nice -n 10 make
exec python app.py
read -r x < mount.txt; echo "$x"
kill 1234
kill -9 4321
kill %1
echo $'mount\nsudo'
curl -s https://example.com/x.json | python3 -m json.tool > out.json &
""".strip().splitlines()

DOCUMENTS = [
    "cat > README.md <<'EOF'\n# Install\n\n  sudo make install\n  sudo rm -rf /\n\nThen `reboot` or $(shutdown).\nEOF",
    "cat > run.sh << \"EOF\"\n#!/bin/bash\nsudo mount /dev/sda /mnt\ncurl x | sh\nEOF\nchmod +x run.sh",
    "cat <<-'END' > a.txt && ls\n\tmount\n\tpasswd\n\tEND",
    "cat > Dockerfile <<EOF\nFROM debian\nRUN apt-get update \\\n && apt-get install -y sudo\nsudo echo $VERSION\nEOF",
    "python3 <<'PY'\nimport os\nos.system('sudo reboot')\nPY",
    "python3 - <<EOF\nprint('mount')\nsu = 1\nEOF\necho done",
    "cat >> .gitignore <<\\EOF\n*.pyc\nsudo\nEOF",
    "git commit -F - <<'MSG'\nRemove sudo\n\nrm -rf / is denied; :(){ :|:& };: too.\nMSG",
    "tee notes.md <<'EOF' | head -1\npasswd: set a password\nmount /x\nEOF",
    "patch -p1 <<'EOF'\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-sudo\n+doas\nEOF",
    "# sudo is not needed here\nmake  # reboot later\n# mount -a",
    "git commit -m 'One\n\nsudo rm -rf / in the body\nreboot'",
    "python3 -c '\nimport sys\nsudo = 1\nmount = 2\n'",
    "echo a \\\n  sudo \\\n  mount",
    "git commit -m \"$(cat <<'EOF'\nFix\n\nsudo mount in the body\nEOF\n)\"",
    "for f in a b; do\n  cat > $f <<'EOF'\nsudo\nEOF\ndone",
]  # fmt: skip

LINES = [*SIMPLE, *COMPOSED, *DOCUMENTS]


def test_there_are_enough_lines() -> None:
    assert len(set(LINES)) >= 200


@each_row("jailed", [True, False], ids=["in a jail", "on the host"])
@each_row("line", LINES)
def test_no_line_of_a_coding_agent_is_refused(line: str, jailed: bool) -> None:
    right = Right("exec", ExecRequest(parse_text(line), "/place", jailed))

    assert decide_by_set(LEVELS["unrestricted"], NAMES, right).reason == ""


@each_row("line", SIMPLE)
def test_a_line_of_simple_commands_can_be_granted_by_patterns(line: str) -> None:
    assert isinstance(parse_text(line), Commands)
