"""Shell completion: ``tencost completion bash``, or Click's own ``_TENCOST_COMPLETE=bash_source tencost``.

Bash splits words at ``=`` and ``:``, which stand in the middle of an override and of a model's URI; the function that
it gets here hands over the whole line, and cuts off of each answer what bash believes to be another word.
"""

from __future__ import annotations

import os
import re
import sys
from typing import ClassVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from tencost.cli.grammar import Command

VARIABLE = "_TENCOST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


class WholeLine(BashComplete):
    """Bash, with words that hold = and : whole."""

    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    local response

    response=$(env COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" %(complete_var)s=bash_complete "$1")

    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"

        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
            [[ $value == *[=.] ]] && compopt -o nospace
        fi
    done

    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""

    _hidden = ""
    """The beginning of the word at the cursor that bash takes for other words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        if "COMP_LINE" not in os.environ:
            return super().get_completion_args()
        line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        self._hidden = re.match(r"(.*[=:])?", incomplete).group()  # type: ignore[union-attr]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._hidden)}"


add_completion_class(WholeLine)
_HELP = """Print the code that completes words in bash, zsh or fish.

\b
Switch it on:
  bash  eval "$(tencost completion bash)"  in ~/.bashrc
  zsh   eval "$(tencost completion zsh)"   in ~/.zshrc, after compinit
  fish  tencost completion fish > ~/.config/fish/completions/tencost.fish
"""


def _completion(shell: str) -> None:
    completer = get_completion_class(shell)
    assert completer is not None
    root = click.get_current_context().find_root().command
    sys.stdout.write(completer(root, {}, "tencost", VARIABLE).source())


COMPLETION = Command(
    "completion",
    _completion,
    _HELP,
    examples=[f"tencost completion {shell}" for shell in SHELLS],
    params=(click.Argument(["shell"], type=click.Choice(SHELLS)),),
)
