"""`baton completion bash|zsh`: a script that completes the command line of `baton`.

The words are read from the help texts when the script is made, so they are those of the installed
version; completing itself starts no Python.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable

Main = Callable[[list[str]], int]

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
SUBCOMMAND = re.compile(r"^ {2,4}([a-z][a-z-]+)(?= {2,}\S| [A-Z\[]|$)", re.MULTILINE)
TAKES_A_FILE = "--config | --run-dir | --prefix | --model | --file | --dir"
HELP = """\
usage: baton completion bash|zsh

  bash   source <(baton completion bash)       in ~/.bashrc, or once, as root:
         baton completion bash > /etc/bash_completion.d/baton
  zsh    source <(baton completion zsh)        in ~/.zshrc, after compinit
"""
BASH = """\
_baton() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words each
  COMPREPLY=()
  case "$before" in {files}) return ;; esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  while IFS= read -r each; do COMPREPLY+=("$each"); done < <(compgen -W "$words" -- "$word")
}}
complete -o default -F _baton baton
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def main(argv: list[str], baton: Main, commands: Iterable[str]) -> int:
    """`baton` runs a command line; `commands` are its first words. Returns the exit status; 2 for a
    shell that is not known."""
    if argv in (["--help"], ["-h"]):
        print(HELP, end="")
        return 0
    if argv not in (["bash"], ["zsh"]):
        print(HELP, end="", file=sys.stderr)
        return 2
    words = {name: words_of(help_of(baton, name)) for name in commands}
    print((ZSH if argv == ["zsh"] else "") + script(words), end="")
    return 0


def help_of(baton: Main, command: str) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        baton([command, "--help"])
    return text.getvalue()


def words_of(text: str) -> list[str]:
    """Subcommands and flags that a help text names, in its order, each once."""
    return list(dict.fromkeys([*SUBCOMMAND.findall(text), *FLAG.findall(text)]))


def script(words: dict[str, list[str]]) -> str:
    """For bash, and for zsh after `bashcompinit`."""
    cases = [f'      {name}) words="{" ".join(each)}" ;;' for name, each in words.items()]
    return BASH.format(files=TAKES_A_FILE, commands=" ".join(words), cases="\n".join(cases))
