"""What is a secret, by its look or by its name, doesn't get into the log; what is none stays readable."""

import shlex
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.services.audit.redaction import redact
from tests.support.runs.rounds import rounds
from tests.support.runs.rows import each_row

SECRET = "hunter2-Tr0ub4dor"
BEGINNINGS = [
    *("whsec_", "hvs.", "SG.", "dop_v1_", "gsk_", "pplx-", "xai-", "r8_", "figd_", "lin_api_", "dp.pt.", "dckr_pat_"),
    *("PMAK-", "shpat_", "ntn_", "ATATT3", "NRAK-", "sntrys_"),
]


@each_row(
    "text",
    [
        f"psql --password {SECRET} -h db",
        f"mysql --password={SECRET}",
        f"PASSWORD={SECRET} make deploy",
        f"env DB_PASSWORD='{SECRET} and more' ./run",
        f'export GITHUB_TOKEN="{SECRET}"',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"SECRET_KEY_BASE={SECRET}",
        f"apiKey: {SECRET}",
        f'{{"user": "ada", "client_secret": "{SECRET}"}}',
        rf'curl -d "{{\"password\": \"{SECRET}\"}}" http://x',
        f"https://ada:{SECRET}@example.org/repo.git",
        f"postgres://ada:{SECRET}@db/main",
        f"curl -u ada:{SECRET} https://example.org",
        f"curl -H 'Authorization: Bearer {SECRET}' https://example.org",
        f"Authorization: Basic {SECRET}",
        f"X-Api-Key: {SECRET}",
        f"git config credential.helper x; token={SECRET}&user=ada",
        f"Cookie: {SECRET}",
        # A name that is no secret hides none that follows.
        f"curl 'https://x/?access_token={SECRET}&b=1'",
        f"https://x/?X-Amz-Date=1&X-Amz-Signature={SECRET}",
        f"https://x/?sv=1&sig={SECRET}",
        f"curl --data=password={SECRET} https://x",
        f"tool url=https://x?token={SECRET}",
        # All of a header counts, not its first word.
        f"curl -H 'Authorization: token {SECRET}' https://x",
        f"curl -H 'Authorization: ApiKey {SECRET}' https://x",
        f'curl -H \'Authorization: Digest username="ada", response="{SECRET}"\' https://x',
        f"curl -H 'Cookie: theme=dark; sid={SECRET}' https://x",
        # A value ends where the shell says.
        f"PASSWORD='a'{SECRET} run",
        rf"PASSWORD=a\ {SECRET} run",
        rf"PASSWORD=$'a\'{SECRET}' run",
        f"PASSWORD=a,{SECRET} run",
        f"['tool', '--password', 'a {SECRET}']",
        # What an option means depends on the program.
        f"curl -uada:{SECRET} https://x",
        f"curl -u 'ada:a {SECRET}' https://x",
        f"curl -b session={SECRET} https://x",
        f"curl --cookie sid={SECRET} https://x",
        f"sshpass -p {SECRET} ssh host",
        f"mysql -u root -p{SECRET} shop",
        f"redis-cli -h db -a {SECRET} ping",
        f"docker login -u ada -p {SECRET} registry.example.org",
        f"zip -r -P {SECRET} out.zip dir",
        f"htpasswd -b file ada {SECRET}",
        f"echo ada:{SECRET} | chpasswd",
        f"echo {SECRET} | sudo -S ls",
        # By where it is sent, and by the words before it.
        f"https://{SECRET}@github.com/x/y",
        f"https://ada:p@{SECRET}@example.org",
        f"https://hooks.slack.com/services/T000/B000/{SECRET}",
        f"https://api.telegram.org/bot123456789:{SECRET}/getMe",
        f"https://discord.com/api/webhooks/123/{SECRET}",
        "aws configure set aws_secret_access_key " + SECRET,
        f"SSHPASS={SECRET} sshpass -e ssh host",
        # In SQL, in XML, in a .netrc.
        f"psql -c \"ALTER USER ada WITH ENCRYPTED PASSWORD '{SECRET}'\"",
        f"psql -c \"create role ada login password '{SECRET}' valid until 'infinity'\"",
        f"mysql -e \"CREATE USER 'ada'@'%' IDENTIFIED BY '{SECRET}'\"",
        f"mysql -e \"ALTER USER ada IDENTIFIED WITH mysql_native_password BY '{SECRET}'\"",
        f"mysql -e \"SET PASSWORD FOR ada = '{SECRET}'\"",
        f"echo 'GRANT ALL ON x TO ada IDENTIFIED BY {SECRET};' | sqlplus / as sysdba",
        f"curl -d '<login><user>ada</user><password>{SECRET}</password></login>' https://x",
        f'<wsse:Password Type="#PasswordText">{SECRET}</wsse:Password>',
        f"<apiKey><![CDATA[{SECRET}]]></apiKey>",
        f"echo machine example.org login ada password {SECRET} >> .netrc",
        f"printf 'machine example.org\\nlogin ada\\npassword {SECRET}\\n' > .netrc",
        f"machine example.org\n  login ada\n  password {SECRET}\n",
        # As an argument of which only the program knows what it is.
        f"openssl enc -aes-256-cbc -in plain -k {SECRET} -out file",
        f"openssl dgst -sha256 -hmac '{SECRET}' file",
        f"openssl rsa -in key.pem -passin pass:{SECRET}",
        f"sqlplus -S scott/{SECRET}@db @report.sql",
        f"sqlldr userid=scott/{SECRET}@db control=load.ctl",
        f"echo 'connect scott/{SECRET}@db' | sqlplus /nolog",
        f"kubectl create secret generic db --from-literal=k={SECRET} --from-literal=n=1",
        f"kubectl create secret generic db --from-literal k={SECRET}",
        f"kubectl create secret generic db '--from-literal=k={SECRET}'",
        f"kubectl create secret generic db --from-literal='k=a {SECRET}'",
    ],
)
def test_what_is_called_a_secret_is_taken_out(text: str) -> None:
    for shown in (text, shlex.join(["sh", "-c", text]), shlex.join(["sh", "-c", shlex.join(["sh", "-c", text])])):
        assert SECRET not in redact(shown)
        assert "[redacted]" in redact(shown)


@pytest.mark.parametrize("text", [f"PASSWORD=\"a\"'{SECRET}' run", f"tool --password 'a'\"{SECRET}\""])
def test_a_value_of_several_pieces_is_taken_out_whole(text: str) -> None:
    assert SECRET not in redact(text)


@each_row(
    "key",
    [
        "sk-proj-4f9aB2c8dE1f7A6b5C3d",
        "sk-ant-api03-4f9aB2c8dE1f7A6b5C3d",
        "sk_live_4f9aB2c8dE1f7A6b5C3d",
        "AIzaSyA4f9aB2c8dE1f7A6b5C3dE2f1A0b9C8d",
        "ghp_4f9aB2c8dE1f7A6b5C3dE2f1A0b9C8d7e6",
        "github_pat_11ABCDEFG0_4f9aB2c8dE1f7A6b5C3d",
        "glpat-4f9aB2c8dE1f7A6b5C3d",
        "xoxb-1234567890-abcdefghij",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.4f9aB2c8dE1f7A6b5C3d",
        "hf_4f9aB2c8dE1f7A6b5C3dE2f1",
        *(f"{begin}4f9aB2c8dE1f7A6b5C3dE2f1" for begin in BEGINNINGS),
    ],
)
def test_a_key_is_known_by_how_it_begins(key: str) -> None:
    assert redact(f"echo {key} > file") == "echo [redacted] > file"


def test_a_private_key_is_taken_out_whole_and_also_when_its_end_is_missing() -> None:
    block = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\nBBBB\n-----END OPENSSH PRIVATE KEY-----"

    assert redact(f"cat <<E\n{block}\nE") == "cat <<E\n[redacted]\nE"
    assert redact(block[:50]) == "[redacted]"


@each_row(
    ("text", "shown"),
    [
        ("curl 'https://x?token=abc&n=1' -o file", "curl 'https://x?token=[redacted]&n=1' -o file"),
        ("curl -H 'X-Api-Key: abc' https://x -H 'y: z'", "curl -H 'X-Api-Key: [redacted]' https://x -H 'y: z'"),
        ("sh -c 'PASSWORD=abc make all' && ls 'a b'", "sh -c 'PASSWORD=[redacted] make all' && ls 'a b'"),
        ("env 'PASSWORD=a b' make all", "env 'PASSWORD=[redacted]' make all"),
        ("mysql -uroot -pabc shop", "mysql -uroot -p[redacted] shop"),
        ('{"token": "a, b", "user": "ada"}', '{"token": [redacted], "user": "ada"}'),
        (r'"{\"token\": \"a b\", \"user\": \"ada\"}"', r'"{\"token\": [redacted], \"user\": \"ada\"}"'),
        ("{token: abc, user: ada}", "{token: [redacted], user: ada}"),
    ],
)
def test_what_stands_around_a_secret_stays(text: str, shown: str) -> None:
    assert redact(text) == shown


def test_something_long_after_such_a_word_is_taken_out() -> None:
    assert redact("the token is 0123456789abcdef0123456789abcdef") == "the token is [redacted]"


@each_row(
    "text",
    [
        "/workspace/notes.md",
        "git commit -m 'handle tokens better'",
        "max_tokens=500",
        "monkey=banana keyboard=us",
        "ls -la /home/ada/.config",
        "python tokenizer.py --tokenizer=bpe",
        "the key to success",
        "https://example.org:8080/a@b",
        "git commit -m 'key points' --author='Ada <ada@example.org>'",
        "git show 0123456789abcdef0123456789abcdef01234567",
        "git push -u git@github.com:org/repo.git main",
        "git clone ssh://git@github.com/org/repo.git",
        "agentos kill token-counter 3f2b8c1e-9d4a-4f6b-8a7c-1234567890ab",
        "kubectl get secret database-credentials",
        "ls -p x && mkdir -p a/b && cp -a x y && tar -u file",
        "ssh -p 22 host && scp -P 22 a host:/x",
        "sshpass -e ssh -p 22 host",
        "docker run -p 80:80 -u 1000:1000 img",
        "docker run --name mongo -p 27017:27017 -u node:node -v /etc/passwd:/etc/passwd:ro mongo:7",
        "mysql -u root -p shop -P 3306",
        'curl -b cookies.txt --cookie-jar jar -d \'{"name": "ada"}\' http://127.0.0.1:8000/a@b',
        "pytest tests/test_token.py::test_a_secret_is_hidden tests/test_api_key.py",
        "env PATH=/usr/bin:/bin HOME=/root make -j2",
        "awk -F: '{print $1}' /etc/passwd",
        "open the password reset page, then the login page",
        "grep -rn password 'src/login.py' | grep -v \"password field\"",
        "ALTER USER ada VALID UNTIL 'infinity'; SELECT 'the password page'",
        "SELECT name FROM users WHERE password IS NULL",
        "the bird was identified by Ada as a wren",
        "<key>CFBundleName</key><string>Notes</string>",
        "<author>Ada</author><title>Passwords</title>",
        "login <token> </dev/null",
        "List<Token> tokens = parse(text)",
        "uses: actions/checkout@v4 and npm install @scope/package@1.0",
        "docker pull library/nginx@sha256:0f3a",
        "openssl x509 -in cert.pem -noout -text",
        "openssl req -newkey rsa:2048 -keyout key.pem",
        "sqlplus / as sysdba",
        "sqlplus /nolog @reports/daily.sql",
        "connect the parts/pieces of the machine by default",
        "kubectl create configmap app --from-file=config.ini",
        "",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@given(st.text(alphabet="keytoken=:\"'\\ -_.@/pasword\n{}", max_size=300))
def test_what_was_redacted_stays_so(text: str) -> None:
    assert redact(redact(text)) == redact(text)


HOSTILE = [
    *("'", '"', "\\", "'\"'\"'", "key='", 'key\\"', 'key="""', "key=a,", "key=$'", "a:1 chpasswd ", "://a", "a@"),
    *("mysql ", "echo a|", "curl -b ", "authorization:", "Cookie: a ", '="a"', "api_key a", "eyJaaaaaaaaa", "sk-."),
    *(
        "alter user ",
        "alter user password ",
        "identified by ",
        "identified with a ",
        "<password>",
        "<password>a",
        "<key a",
    ),
    *(
        "machine a login a ",
        "machine a ",
        "machine\\n",
        "default password ",
        "openssl -k ",
        "sqlplus a/",
        "connect a/b",
    ),
    *("--from-literal=", "--from-literal=k=", "create role login ", "set password for a "),
]


@pytest.mark.parametrize(
    "piece", ["a", "-", "key ", "key=", "_.-", "--a ", "://a:", '\\"', "-u a:", "sk-", "token ", *HOSTILE]
)
def test_no_text_makes_it_slow(piece: str) -> None:
    text = piece * (rounds(200_000) // len(piece))
    began = time.thread_time()

    assert len(redact(text)) > 0

    assert time.thread_time() - began < rounds(60), "seconds; in time that grew with the square it would take more"
