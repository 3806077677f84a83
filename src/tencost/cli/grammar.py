"""What all commands have in common: options are ``--name VALUE``, fields of the configuration ``group.field=value``.

Click parses; the classes here add what the house wants beyond it. Every help has examples. An option is given once. A
word that begins with a dash and a digit is a number. Options used to be written ``name=VALUE`` by some commands: that
is still understood, with a line on standard error that says how it is written now.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tencost.cli import extras

HELP = ("-h", "--help")
SETTINGS: dict[str, Any] = {"help_option_names": list(HELP), "max_content_width": 110}

F = TypeVar("F", bound=Callable[..., Any])


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic from Click 8.4 on
    """A whole number of at least `least`."""

    name = "N"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if isinstance(value, int):
            return value
        if re.fullmatch(r"[+-]?[0-9]{1,18}", value) and int(value) >= self._least:
            return int(value)
        self.fail(f"expected a whole number of at least {self._least}, found {value!r}", param, ctx)


class Text(click.ParamType):  # type: ignore[type-arg]
    """Some text, not none; `complete` gives what it may be."""

    def __init__(self, name: str, complete: Callable[[], Sequence[str]] = tuple) -> None:
        self.name = name
        self._complete = complete

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | None:
        if not value:
            self.fail(f"expected {self.name}, found nothing", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(word) for word in self._complete() if word.startswith(incomplete)]


class Place(click.Path):
    """A file or folder, ~ for the home folder."""

    def __init__(self, name: str = "PATH") -> None:
        super().__init__()
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail(f"expected {self.name}, found nothing", param, ctx)
        return Path(str(super().convert(value, param, ctx))).expanduser()


class ValueOption(click.Option):
    """An option with a value.

    Attributes:
        old: names that it had where options were written name=VALUE, beside its own.
    """

    def __init__(self, *arguments: Any, old: Sequence[str] = (), **keywords: Any) -> None:
        if isinstance(keywords.get("type"), Whole | Text | Place):
            keywords.setdefault("metavar", keywords["type"].name)
        super().__init__(*arguments, **keywords)
        self.old = tuple(old)

    def words(self) -> list[str]:
        """Return all names that this option has in an old spelling."""
        own = [name.lstrip("-") for name in self.opts if name.startswith("--")]
        return [*own, *(name.replace("-", "_") for name in own), *self.old]


def option(*names: str, **keywords: Any) -> Callable[[F], F]:
    """Declare an option with a value; see :class:`ValueOption`."""
    return click.option(*names, cls=ValueOption, **keywords)


class Command(click.Command):
    """A command of the house.

    Attributes:
        examples: whole command lines, shown in the help.
        old_spelling: whether name=VALUE is understood for every option with a value, and not only where it has a name
            in `ValueOption.old`.
    """

    old_spelling = True

    def __init__(self, *arguments: Any, examples: Sequence[str], **keywords: Any) -> None:
        keywords["context_settings"] = {**SETTINGS, "ignore_unknown_options": True}
        super().__init__(*arguments, **keywords)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = self._today(ctx, args)
        if not ctx.resilient_parsing and not set(words) & set(HELP):
            try:
                self._check(ctx, words)
            except click.UsageError as error:
                error.ctx = error.ctx or ctx  # Click's parser does not say where it was
                raise
        return super().parse_args(ctx, words)

    def invoke(self, ctx: click.Context) -> Any:
        extras.require(path_of(ctx))
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)

    def _options(self, ctx: click.Context) -> list[click.Option]:
        return [item for item in self.get_params(ctx) if isinstance(item, click.Option)]

    def _today(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Return the words with every old spelling replaced, and say so."""
        named: dict[str, str] = {}
        takers = set()
        for item in self._options(ctx):
            if isinstance(item, ValueOption):
                names = item.words() if self.old_spelling else item.old
                named.update(dict.fromkeys(names, item.opts[-1]))
                takers.update(item.opts)
        found: list[str] = []
        replaced: list[tuple[str, str]] = []
        literal = False
        for index, word in enumerate(args):
            literal = literal or word == "--"
            key, equals, value = word.partition("=")
            is_value = index > 0 and args[index - 1] in takers
            if equals and key in named and not literal and not is_value:
                found.append(f"{named[key]}={value}")
                replaced.append((word, f"{named[key]} {shlex.quote(value)}"))
            else:
                found.append(word)
        if replaced and not ctx.resilient_parsing:
            old, new = (" ".join(words) for words in zip(*replaced, strict=True))
            sys.stderr.write(f"tencost: old spelling: {old}; write {new}\n")
        return found

    def _check(self, ctx: click.Context, words: list[str]) -> None:
        """Refuse unknown options and options given twice; what else can be wrong is Click's to find."""
        given, extra, order = self.make_parser(ctx).parse_args(list(words))
        literal = words[words.index("--") + 1 :] if "--" in words else []
        plain = list(extra)
        for argument in self.get_params(ctx):
            if isinstance(argument, click.Argument):
                value = given.get(argument.name or "")
                plain += [value] if isinstance(value, str) else _words(value)
        valid = [name for item in self._options(ctx) for name in item.opts]
        for word in plain:
            if re.match(r"-[^0-9]", word) and word not in literal:
                name = word.partition("=")[0]
                raise click.NoSuchOption(name, possibilities=valid, ctx=ctx)
            if self.old_spelling and re.fullmatch(r"[a-z_]+=\S*", word) and not Path(word).exists():
                raise click.UsageError(
                    f"expected options of {', '.join(valid)}, found {word!r}", ctx
                )
        if extra:
            raise click.UsageError(f"expected no more words, found {' '.join(extra)!r}", ctx)
        for item in self._options(ctx):
            value = given.get(item.name or "")
            if isinstance(value, str) and value.startswith("--"):
                raise click.UsageError(
                    f"expected a value after {item.opts[-1]}, found the option {value}", ctx
                )
            if order.count(item) > 1 and not item.multiple:
                raise click.UsageError(
                    f"expected {item.opts[-1]} once, found it {order.count(item)} times", ctx
                )


class Group(click.Group):
    """A command that has sub-commands, in the order in which they were added."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: Sequence[str], **keywords: Any) -> None:
        keywords["context_settings"] = SETTINGS
        super().__init__(*arguments, **keywords)
        self.no_args_is_help = False
        self.examples = tuple(examples)

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            self.refuse(ctx, "nothing")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            self.refuse(ctx, repr(args[0]))
        return super().resolve_command(ctx, args)

    def refuse(self, ctx: click.Context, found: str) -> None:
        """Say what a word after the group's name may be."""
        raise click.UsageError(
            f"expected `{ctx.command_path}` and one of {', '.join(self.commands)}, found {found}",
            ctx,
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)


def path_of(ctx: click.Context) -> str:
    """Return the words that name a command, without `tencost`."""
    return " ".join(ctx.command_path.split()[1:])


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    """Write the part of a help that shows whole command lines, unwrapped so that they can be copied."""
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _words(value: Any) -> list[str]:
    """Return what Click gathered for an argument of many words; nothing where there were none."""
    return list(value) if isinstance(value, list | tuple) else []
