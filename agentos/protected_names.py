"""The names in a workspace that programs obey without being told to run the project; docs/reference/protected-names.md.

``STUBS``, ``IN_GIT`` in a repository and ``BESIDE_REFS`` are kept taken where they are absent. ``WATCHED`` and
``OBEYED`` aren't: an empty file of such a name would change what programs do. They are read-only where they exist; of
those that an agent makes, ``WATCHED`` are taken out within a second, and ``OBEYED`` are reported at its end. So are
``BUILT``, which an agent may change: its own tools build them.
"""

from collections.abc import Mapping

DIRECTORY = None
STUBS: Mapping[str, str | None] = {
    # git: hooks are programs, and the configuration names programs; without .git an agent could create both with it
    ".git": DIRECTORY,
    # with HEAD, and objects beside "refs" or in the directory that "commondir" names, this were itself a repository
    "refs": "",
    "commondir": ".\n",  # an empty file would be an error of git's
    ".gitmodules": "",
    ".gitconfig": "",
    ".husky": DIRECTORY,
    # shells, if the workspace is a home directory or direnv is in use
    ".envrc": "",
    ".profile": "",
    ".bashrc": "",
    ".zshrc": "",
    ".zshenv": "",
    ".zprofile": "",
    # editors: tasks that run when a folder is opened
    ".vscode": DIRECTORY,
    ".idea": DIRECTORY,
    ".devcontainer": DIRECTORY,
    # other AI agents: their servers, hooks and permissions
    ".claude": DIRECTORY,
    ".codex": DIRECTORY,
    ".cursor": DIRECTORY,
    ".gemini": DIRECTORY,
    # our own: a program that it names is started without a jail by the next `agentos run` or reload
    "agentos.toml": "",
}
BESIDE_REFS: Mapping[str, str | None] = {"HEAD": ""}  # where "refs" is a directory of the host's: with HEAD git enters
IN_GIT: Mapping[str, str | None] = {  # in an existing repository, where commits stay possible
    ".git/hooks": DIRECTORY,
    ".git/config": "",
    ".git/config.worktree": "",  # obeyed where extensions.worktreeConfig is set, which `git sparse-checkout` does
    ".git/commondir": ".\n",  # where git looks for hooks and configuration; an empty file is an error
    ".git/remotes": DIRECTORY,  # remotes beside the configuration: a push to one in the workspace runs hooks there
    ".git/branches": DIRECTORY,
}

WATCHED: Mapping[str, str] = {  # the name, and what obeys it
    "conftest.py": "pytest",  # it imports it regardless of its arguments; an empty one changes what it finds
    ".pre-commit-config.yaml": "pre-commit",  # an empty one fails where hooks allow that there is none
    ".mcp.json": "Claude Code",  # an empty one is no JSON
    ".bash_profile": "bash",  # it is read instead of .profile
}
OBEYED: Mapping[str, str] = {  # the name, and what obeys it when it runs in the directory or opens it
    ".npmrc": "npm",
    ".yarnrc": "yarn",
    ".yarnrc.yml": "yarn",
    ".yarn/releases": "yarn",  # the program that .yarnrc.yml names
    ".yarn/plugins": "yarn",
    ".pnpmfile.cjs": "pnpm",
    ".pnpmfile.mjs": "pnpm",
    "bunfig.toml": "bun",
    "pnpm-workspace.yaml": "pnpm",
    "uv.toml": "uv",
    "poetry.toml": "poetry",
    ".python-version": "uv",  # it may name a program in the workspace, which most commands of uv run
    ".python-versions": "uv",
    ".pdm-python": "pdm",
    "pdm.toml": "pdm",
    ".mvn": "maven",
    ".buckconfig": "buck",
    ".buckconfig.local": "buck",
    "tools/bazel": "bazelisk",  # it is run in bazel's place
    ".bazeliskrc": "bazelisk",
    ".bazelversion": "bazelisk",
    "ansible.cfg": "ansible",
    ".cargo/config": "cargo",
    ".cargo/config.toml": "cargo",
    "rust-toolchain": "cargo",
    "rust-toolchain.toml": "cargo",
    ".bundle/config": "bundler",
    ".bazelrc": "bazel",
    ".corepack.env": "corepack",  # from where yarn and pnpm are fetched
    **dict.fromkeys(["nuget.config", "NuGet.config", "NuGet.Config"], "dotnet"),
    ".swiftpm": "swift",
    ".rvmrc": "rvm",
    ".rbenv-vars": "rbenv",
    "mise.toml": "mise",
    ".mise.toml": "mise",
    ".mise": "mise",
    "mise/config.toml": "mise",
    "mise.local.toml": "mise",
    ".mise.local.toml": "mise",
    ".config/mise": "mise",
    ".config/mise.toml": "mise",
    ".config/mise.local.toml": "mise",
    ".tool-versions": "asdf and mise",
    "lean-toolchain": "elan",
    "global.json": "dotnet",  # it may name an SDK in the workspace
    "flake.nix": "direnv",  # an .envrc with `use flake` runs them when a shell enters the directory
    "flake.lock": "direnv",
    "shell.nix": "direnv",
    "devenv.nix": "direnv",
    "devenv.yaml": "direnv",
    "devbox.json": "direnv",
    "devenv.local.nix": "direnv",
    "devenv.local.yaml": "direnv",
    # what these keep: scripts that a shell reads when it enters the directory
    **dict.fromkeys([".direnv", ".devenv", ".devbox", ".flox"], "direnv"),
    **dict.fromkeys([".autoenv", ".autoenv.leave", ".autoenv.zsh", ".autoenv_leave.zsh"], "autoenv"),
    ".shadowenv.d": "shadowenv",
    **dict.fromkeys(
        [
            f"{where}{name}.{kind}"
            for where in ("", ".", ".config/")
            for name in ("lefthook", "lefthook-local")
            for kind in ("yml", "yaml", "toml", "json")
        ],
        "lefthook",
    ),
    "prek.toml": "prek",
    "hk.pkl": "hk",
    "hk.local.pkl": "hk",
    ".config/hk.pkl": "hk",
    ".config/hk.local.pkl": "hk",
    "captainhook.json": "CaptainHook",
    "rusty-hook.toml": "rusty-hook",
    ".rusty-hook.toml": "rusty-hook",
    ".overcommit.yml": "overcommit",
    **dict.fromkeys([".huskyrc", *(f".huskyrc.{kind}" for kind in ("json", "yaml", "yml", "js"))], "husky"),
    "husky.config.js": "husky",
    **dict.fromkeys(
        [
            ".lintstagedrc",
            *(f".lintstagedrc.{kind}" for kind in ("json", "yaml", "yml", "js", "cjs", "mjs")),
            *(f"lint-staged.config.{kind}" for kind in ("js", "cjs", "mjs")),
        ],
        "lint-staged",
    ),
    ".devcontainer.json": "development containers",
    ".exrc": "vim",
    ".vimrc": "vim",
    ".gvimrc": "vim",
    ".vim": "coc.nvim",
    ".ycm_extra_conf.py": "YouCompleteMe",
    # servers of languages, which editors start: commands
    "rust-analyzer.toml": "rust-analyzer",
    "hie.yaml": "Haskell's language server",
    ".merlin": "merlin",
    ".bsp": "Metals and IntelliJ",
    "buildServer.json": "SourceKit-LSP",
    ".sourcekit-lsp": "SourceKit-LSP",
    ".nvim.lua": "nvim",
    ".nvimrc": "nvim",
    ".dir-locals.el": "emacs",
    ".dir-locals-2.el": "emacs",
    ".helix": "Helix",
    ".fleet": "Fleet",
    ".project": "Eclipse",
    ".zed": "Zed",
    ".vs": "Visual Studio",
    **dict.fromkeys([".settings", ".classpath", ".factorypath"], "Eclipse"),
    "omnisharp.json": "OmniSharp",
    ".lsp": "clojure-lsp",
    ".luarc.json": "Lua's language server",
    ".lazy.lua": "nvim",
    ".lvimrc": "vim",
    ".vimspector.json": "vimspector",
    **dict.fromkeys([".ctags", ".ctags.d"], "ctags"),  # options such as the file to write
    **dict.fromkeys(["gtags.conf", ".globalrc"], "GNU Global"),  # libraries to load
    **dict.fromkeys([".latexmkrc", "latexmkrc"], "latexmk"),  # which editors run
    **dict.fromkeys([".gitpod.yml", ".ona", ".idx", ".replit", ".codesandbox"], "workspaces in a cloud"),
    ".gdbinit": "gdb",
    ".lldbinit": "lldb",
    ".Rprofile": "R",
    ".Renviron": "R",
    ".RData": "R",
    ".octaverc": "Octave",
    ".irbrc": "irb",
    **dict.fromkeys(["irb.rc", "_irbrc", "$irbrc"], "irb"),
    ".psysh.php": "PsySH",
    ".radian_profile": "radian",
    ".nrepl.edn": "nREPL",
    "startup.m": "MATLAB and Octave",
    ".pryrc": "pry",
    ".iex.exs": "iex",
    ".ghci": "ghci",
    ".ocamlinit": "ocaml",
    ".perldb": "perl's debugger",
    ".pdbrc": "Python's debugger",
    ".byebugrc": "byebug",
    ".rdbgrc": "rdbg",
    ".rdbgrc.rb": "rdbg",
    ".jdbrc": "jdb",
    "jdb.ini": "jdb",
    "jupyter_server_config.py": "Jupyter",
    "jupyter_server_config.json": "Jupyter",
    "jupyter_notebook_config.py": "Jupyter",
    "jupyter_notebook_config.json": "Jupyter",
    "jupyter_lab_config.py": "Jupyter",
    "jupyter_lab_config.json": "Jupyter",
    "jupyter_config.py": "Jupyter",
    "jupyter_config.json": "Jupyter",
    ".bash_login": "bash",
    ".bash_logout": "bash",
    ".zlogin": "zsh",
    ".zlogout": "zsh",
    ".bash_aliases": "bash",
    **dict.fromkeys([".cshrc", ".tcshrc", ".login", ".kshrc", ".config/fish"], "a shell"),
    ".ssh": "ssh",
    ".windsurf": "Windsurf",
    ".continue": "Continue",
    ".opencode": "opencode",
    "opencode.json": "opencode",
    "opencode.jsonc": "opencode",
    ".qwen": "Qwen Code",
    ".aider.conf.yml": "aider",
    ".github/hooks": "GitHub Copilot",
    ".roo": "Roo Code",
    ".kilocode": "Kilo Code",
    ".clinerules": "Cline",
    ".amazonq": "Amazon Q",
    ".kiro": "Kiro",
    ".junie": "Junie",
    ".trae": "Trae",
    ".augment": "Augment",
    ".factory": "Factory",
    ".crush.json": "Crush",
    "crush.json": "Crush",
    ".openhands": "OpenHands",
    ".grok": "Grok",
    ".iflow": "iFlow",
    ".kimi": "Kimi",
    ".vibe": "Mistral Vibe",
    ".pi": "pi",
    ".goose": "goose",
    ".agents": "Codex and Amp",
    ".agent": "Antigravity",
    ".amp": "Amp",
    ".copilot": "GitHub Copilot",
    ".rovodev": "Rovo Dev",
    ".codebuddy": "CodeBuddy",
    ".qoder": "Qoder",
    ".lingma": "Lingma",
    ".opencode.json": "opencode",
    **dict.fromkeys([".kilo", "kilo.json", "kilo.jsonc"], "Kilo"),
    ".cline": "Cline",
    ".eca": "Editor Code Assistant",
    ".letta": "Letta Code",
    ".refact": "Refact",
    ".continuerc.json": "Continue",
    ".mcphub": "MCP Hub",
    **dict.fromkeys(["conductor.json", ".conductor"], "Conductor"),
    "codebuff.json": "Codebuff",
    "gptme.toml": "gptme",
    "fastagent.config.yaml": "fast-agent",
    ".git/objects/info/alternates": "git",
    # others' contents and parents in the place of those that a commit names
    ".git/refs/replace": "git",
    ".git/info/grafts": "git",
    ".git/rebase-merge/git-rebase-todo": "git rebase --continue",
    ".git/lazygit.yml": "lazygit",  # a pager and commands
    ".lazygit.yml": "lazygit",  # of the repositories below
    ".hg/hgrc": "Mercurial",
    ".hg/hgrc-not-shared": "Mercurial",
    ".sl/config": "Sapling",
    ".hg/requires": "Mercurial",  # it may say that the configuration is where .hg/sharedpath leads
    ".hg/sharedpath": "Mercurial",
    ".sl/requires": "Sapling",
    ".sl/sharedpath": "Sapling",
    ".jj/repo/config.toml": "Jujutsu",
    ".jj/workspace-config.toml": "Jujutsu",
    ".bzr/branch/branch.conf": "Breezy",
    "_darcs/prefs/defaults": "darcs",
    ".pijul/config": "Pijul",
    ".repo": "repo",  # it holds the program that `repo` runs
    ".west": "west",
    **dict.fromkeys([".gclient", ".gclient_entries"], "gclient"),
    ".reviewboardrc": "RBTools",
    ".arcconfig": "Arcanist",
    ".p4config": "Perforce",
    **dict.fromkeys([".fslckout", "_FOSSIL_"], "Fossil"),  # which repository, and so which programs
    "CVS/Root": "CVS",
    ".chef": "knife",
    ".tflint.hcl": "TFLint",
    ".sops.yaml": "sops",  # whose keys can read what is encrypted next
}

BUILT: Mapping[str, str] = {  # the name, and what runs it to look at the environment
    ".venv/bin/python": "uv",
    ".venv/bin/python3": "uv",
}


_NAMES = frozenset((*STUBS, *WATCHED, *OBEYED, *BUILT)) - {"refs", "commondir"}
_READERS = {**OBEYED, **WATCHED, **BUILT}
_FIRST_PARTS = frozenset(name.partition("/")[0] for name in _NAMES)
_MAX_PARTS = max(name.count("/") + 1 for name in _NAMES)


def find_obeyed(path: str) -> tuple[str, str] | None:
    """The name on a path that makes programs obey it, in whatever directory, and what does; None if nothing does."""
    parts = path.split("/")
    for begin, first in enumerate(parts):
        if first not in _FIRST_PARTS:  # an agent may make paths of a thousand parts
            continue
        for end in range(begin + 1, min(begin + _MAX_PARTS, len(parts)) + 1):
            if (name := "/".join(parts[begin:end])) in _NAMES:
                reader = _READERS.get(name, "a program outside of the jail")
                return "/".join(parts[:end]), reader
    return None
