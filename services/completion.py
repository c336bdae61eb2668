"""`baton completion bash|zsh`: prints a script that completes the command line of `baton`.

The words are read from the help texts when the script is made, so they are those of the installed
version. Completing itself starts no Python.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Callable, Iterable

#: Runs a command line of `baton` and returns its exit status.
Main = Callable[[list[str]], int]

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
SUBCOMMAND = re.compile(r"^ {2,4}([a-z][a-z-]+)(?= {2,}\S| [A-Z\[]|$)", re.MULTILINE)
TAKES_A_FILE = "--config | --run-dir | --prefix | --model | --file | --dir"
EPILOG = """\
  bash   source <(baton completion bash)       in ~/.bashrc, or once, as root:
         baton completion bash > /etc/bash_completion.d/baton
  zsh    source <(baton completion zsh)        in ~/.zshrc, after compinit
"""
BASH = """\
_baton() {{
  local typed=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words word
  COMPREPLY=()
  case "$before" in {files}) return ;; esac
  case "${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
{cases}
  esac
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$typed")
}}
complete -o default -F _baton baton
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def main(argv: list[str], baton: Main, commands: Iterable[str]) -> int:
    """`commands` are the first words that `baton` takes. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="baton completion",
        description="Print a script with which a shell completes the command line of baton.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh"))
    shell = parser.parse_args(argv).shell
    print((ZSH if shell == "zsh" else "") + script(words_by_prefix(baton, commands)), end="")
    return 0


def words_by_prefix(baton: Main, commands: Iterable[str]) -> dict[str, list[str]]:
    """What may follow nothing, a command, or a command with its subcommand."""
    words = {"": list(commands)}
    for command in words[""]:
        text = help_of(baton, command)
        subcommands = SUBCOMMAND.findall(text)
        words[f"{command} "] = [*subcommands, *FLAG.findall(text)]
        for subcommand in subcommands:
            words[f"{command} {subcommand} "] = FLAG.findall(help_of(baton, command, subcommand))
    return words


def help_of(baton: Main, *command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        baton([*command, "--help"])
    return text.getvalue()


def script(words: dict[str, list[str]]) -> str:
    """For bash, and for zsh after `bashcompinit`. The longest prefix is tried first."""
    cases = [
        f'    "{prefix}"*) words="{" ".join(dict.fromkeys(words[prefix]))}" ;;'
        for prefix in sorted(words, key=len, reverse=True)
    ]
    return BASH.format(files=TAKES_A_FILE, cases="\n".join(cases))
