import pytest

from agentos.permissions.patterns.base import Names
from agentos.permissions.patterns.paths import match_any, parse_path_pattern
from agentos.permissions.patterns.secret_paths import GROUPS, SECRETS
from tests.support.runs.rows import each_row

NAMES = Names(home="/root", workspace="/workspace", code="/agent", config="/etc/agentos")
PLACES = ("/workspace", "/workspace/a/b", "/home/ada", "/home/bob/work", "/root", "/srv/data", "")

ANYWHERE = {
    "private keys": """
        .ssh .ssh/id_rsa .ssh/config .ssh/keys/work .ssh/authorized_keys id_rsa id_dsa id_ecdsa id_ed25519
        id_ed25519_sk ssh_host_rsa_key ssh_host_ed25519_key .gnupg/secring.gpg .gnupg/private-keys-v1.d/x server.key
        tls/key.pem server-key.pem privkey.pem privkey1.pem api_private.pem keypair.pem private/server.pem
        private/ca/x.pem AuthKey_X.p8 cert.p12 cert.pfx putty.ppk store.jks release.keystore http.keytab krb5cc_1000
        office.ovpn Downloads/aws.pem .config/sops/age/keys.txt .config/age/x id_ecdsa_sk x.pk8 x.jceks
    """,
    "environment files": """
        .env .env/x .env.local .env.production .env.prod .env.dev .env.development .env.staging .env.test
        .env.secret .env.sandbox .env.stage .env.eu .env.e .env.s .env.t .env.te .env.ex .env.sa .env.1
        .env.example.local .env.bak .env~old/.env .env~ .env.two .env.extra .envrc prod.env dev.env local.env
        live.env
    """,
    "passwords and tokens of programs": """
        .netrc _netrc .authinfo .authinfo.gpg .pgpass .my.cnf .mylogin.cnf .npmrc .pypirc .gem/credentials
        .cargo/credentials .cargo/credentials.toml .m2/settings.xml .gradle/gradle.properties .git-credentials
        .htpasswd .s3cfg .config/git/credentials .config/gh/hosts.yml .config/glab-cli/config.yml
        .config/rclone/rclone.conf .cache/huggingface/token .claude/.credentials.json .codex/auth.json
        credentials.json client_secret_12.json secrets.yml config/secrets.yaml secrets.toml .streamlit/secrets.toml
        .Xauthority .composer/auth.json .smbcredentials .cifscredentials .config/hub .config/pip/pip.conf
        .config/composer/auth.json .claude.json .gemini/oauth_creds.json secrets.json
    """,
    "keys and passwords of other programs": """
        .pki/nssdb/key.db .boto rclone.conf .heroku/x .vercel/auth.json .config/solana/id.json .dockerconfigjson
        prod.tfvars wallet.dat key4.db logins.json service-account-7.json x-adminsdk-y.json
    """,
    "accounts of clouds and clusters": """
        .aws .aws/credentials .aws/config .aws/sso/cache/x.json .azure/accessTokens.json
        .config/gcloud/credentials.db .config/gcloud/application_default_credentials.json
        application_default_credentials.json .docker/config.json .kube/config kubeconfig prod.kubeconfig
        .terraform.d/credentials.tfrc.json .terraformrc terraform.tfstate terraform.tfstate.backup env/prod.tfstate
        .vault-token .vault_pass .vault_pass.txt .oci/config .fly/config.yml .config/containers/auth.json
        .config/doctl/config.yaml .config/hcloud/cli.toml .config/scw/config.yaml .config/linode-cli .config/fly/x
        .config/openstack/clouds.yaml .config/ngrok/ngrok.yml .databrickscfg .dockercfg
    """,
    "histories of shells": """
        .bash_history .zsh_history .python_history .psql_history .mysql_history .sqlite_history .node_repl_history
        .rediscli_history .ksh_history .irb-history .bash_history-01234.tmp .bash_history.bak .zhistory .lesshst
        .viminfo .local/share/fish/fish_history .local/state/python/history .local/share/atuin/history.db
        .local/share/powershell/PSReadLine/ConsoleHost_history.txt .histfile .local/state/nvim/shada/main.shada
    """,
    "browsers' profiles": """
        .mozilla .mozilla/firefox/x.default/logins.json .config/google-chrome/Default/Cookies
        .config/google-chrome-beta/x .config/chromium/Default/Cookies .config/BraveSoftware/Brave-Browser/x
        .config/microsoft-edge/Default/Cookies .config/microsoft-edge-dev/x .config/vivaldi/x .config/opera/x
        .thunderbird/x/key4.db snap/firefox/common/.mozilla/firefox/x snap/chromium/common/chromium/Default/Cookies
        .var/app/org.mozilla.firefox/x .var/app/com.google.Chrome/config/x .var/app/com.brave.Browser/x .librewolf/x
        .config/mozilla/firefox/x .cache/mozilla/x .cache/google-chrome/x .cache/chromium/x snap/brave/x
        snap/thunderbird/x .var/app/org.chromium.Chromium/x .var/app/com.microsoft.Edge/x
    """,
    "password stores and keyrings": """
        .password-store/mail.gpg .local/share/keyrings/login.keyring .local/share/kwalletd/kdewallet.kwl
        Passwords.kdbx old.kdb .config/keepassxc/keepassxc.ini .config/KeePass/x .config/Bitwarden/data.json
        ".config/Bitwarden CLI/data.json" snap/bitwarden/current/x .config/1Password/x .config/op/config
        login.keychain-db login.keychain .var/app/com.bitwarden.desktop/data/x .local/share/gopass/x
    """,
}

THERE = {
    "passwords and tokens of programs": "/root/.yarnrc.yml",
    "private keys": """
        /etc/ssh/ssh_host_rsa_key /etc/ssh/ssh_host_ed25519_key /etc/ssh/ca_key /etc/ssl/private
        /etc/ssl/private/server.pem /etc/letsencrypt/live/example.com/privkey.pem /etc/wireguard/wg0.conf
        /root/aws.pem /home/bob/aws.pem /etc/pki/tls/private/localhost.crt
    """,
    "accounts of clouds and clusters": """
        /etc/kubernetes/admin.conf /run/secrets/token /var/run/secrets/kubernetes.io/serviceaccount/token
        /etc/rancher/k3s/k3s.yaml
    """,
    "the system's accounts": """
        /etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d/90-cloud
        /etc/security/opasswd /var/backups/shadow.bak /etc/NetworkManager/system-connections/home.nmconnection
        /etc/wpa_supplicant/x.conf /run/credentials/x /etc/credstore.encrypted/x /var/lib/sss/db/x
    """,
    "the system's insides": """
        /proc /proc/self/environ /proc/1/root/etc/shadow /proc/kcore /proc/self/mem /proc/42/maps /sys
        /sys/kernel/debug /sys/fs/cgroup/x /dev/mem /dev/kmem /dev/port /dev/sda /dev/sda1 /dev/vda /dev/hda
        /dev/xvda1 /dev/nvme0n1p1 /dev/mmcblk0 /dev/dm-0 /dev/mapper/root /dev/disk/by-uuid/x /dev/input/event0
    """,
}

FREE = """
    .env.example .env.sample .env.template .env.example.md example.env sample.env template.env environment
    .environment env .env_file_docs.md my.env.py envrc server.crt server.cer ca.pem cacert.pem cert.pem
    chain.pem fullchain.pem bundle.pem id_rsa.pub id_ed25519.pub ssh_host_rsa_key.pub id_rsa_notes.md ssh/config
    keys.py key.txt main.key.py public.asc notes.txt README.md history HISTORY.md history.txt bash_history.md
    .gitignore .gitconfig .git/config .dockerignore docker/config.json Dockerfile kube/config aws/credentials.py
    azure/x.py config/gcloud/x credentials.md credentials.py secrets.py secret.txt src/secrets/reader.py
    tests/test_secrets.py .config/gh/config.yml .config/htop/htoprc .config/Code/User/settings.json
    .local/share/applications/x.desktop .bashrc .profile .zshrc .vimrc .inputrc .terraform.d/plugins/x main.tf
    terraform.tfvars.example tfstate chromium/x google-chrome/x mozilla/x snap/code/x .cargo/config.toml
    .cargo/registry/x .docker/daemon.json package.json .m2/repository/x .gradle/caches/x pip.conf .cache/pip/x
    proc/x sys/x dev/sda etc/shadow etc/sudoers shadow sudoers keepass.txt x.kdbx.md gnupg/x vault-token
    .yarnrc.yml
"""

FREE_THERE = """
    / /etc /etc/passwd /etc/group /etc/hosts /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt
    /etc/ssl/certs/ISRG_Root_X1.pem /etc/ssl/cert.pem /etc/ssh/sshd_config /etc/ssh/ssh_host_rsa_key.pub
    /usr/lib/python3/dist-packages/certifi/cacert.pem
    /workspace/.venv/lib/python3.11/site-packages/certifi/cacert.pem
    /etc/letsencrypt/live/example.com/fullchain.pem /process/x /procfs /system/x /dev/null /dev/shm/x /dev/stdin
    /dev/std /dev/random /run/user/1000/x /var/log/syslog /agent/main.py /etc/agentos/agentos.toml /root
    /home/ada /home/ada/.config /home/ada/.local/share
"""

denied = match_any([parse_path_pattern(pattern, NAMES) for pattern in SECRETS], deny=True)


def split(text: str) -> list[str]:
    """At white space, but not within quotes."""
    return [word for index, part in enumerate(text.split('"')) for word in ([part] if index % 2 else part.split())]


def group_of(path: str) -> set[str]:
    return {
        group
        for group, patterns in GROUPS.items()
        if any(parse_path_pattern(each, NAMES).matches(path, deny=True) for each in patterns)
    }


@each_row("place", PLACES)
@each_row("group", ANYWHERE)
def test_secrets_are_denied_wherever_they_lie(group: str, place: str) -> None:
    for name in split(ANYWHERE[group]):
        assert group in group_of(f"{place}/{name}"), name
        assert denied(f"{place}/{name}"), name
        assert denied(f"{place}/{name}/beneath"), name


@each_row("group", THERE)
def test_the_systems_secrets_are_denied_where_they_lie(group: str) -> None:
    for path in split(THERE[group]):
        assert group in group_of(path), path
        assert denied(path), path


@pytest.mark.parametrize("place", ["/workspace", "/workspace/a/b", "/home/ada/work", "/srv/data"])
def test_what_only_looks_like_a_secret_is_not_denied(place: str) -> None:
    assert [name for name in split(FREE) if denied(f"{place}/{name}")] == []


def test_files_that_every_program_reads_are_not_denied() -> None:
    assert [path for path in split(FREE_THERE) if denied(path)] == []


@each_row("group", GROUPS)
def test_the_tables_above_have_an_example_of_every_default_denial(group: str) -> None:
    anywhere, there = split(ANYWHERE.get(group, "")), split(THERE.get(group, ""))
    paths = [f"{place}/{name}" for place in PLACES for name in anywhere] + there

    for text in GROUPS[group]:
        assert any(parse_path_pattern(text, NAMES).matches(path, deny=True) for path in paths), text


def test_no_default_denial_does_what_another_does_already() -> None:
    patterns = [parse_path_pattern(text, NAMES) for text in SECRETS]

    for one in patterns:
        assert [other.text for other in patterns if other is not one and other.covers(one, deny=True)] == []


def test_no_default_denial_is_written_twice() -> None:
    assert len(set(SECRETS)) == len(SECRETS)


def test_default_denials_hold_for_callers_without_a_workspace_as_well() -> None:
    host = Names(home="/home/ada")

    assert all(parse_path_pattern(pattern, host).segments is not None for pattern in SECRETS)
