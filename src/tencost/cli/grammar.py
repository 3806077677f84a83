"""How commands are declared: :class:`Command` and :class:`Group`, options by :func:`option` and :func:`flag`.

Options are ``--name VALUE``, fields of the configuration ``group.field=value``. Click parses; the classes here add what
the house wants beyond it. Every help has examples. An option is given once. A word that begins with a dash and a digit
is a number. Options used to be written ``name=VALUE`` by some commands: that is still understood, with a line on
standard error that says how it is written now.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from tencost.cli import extras

HELP = ("-h", "--help")
SETTINGS: dict[str, Any] = {"help_option_names": list(HELP), "max_content_width": 110}


class Whole(click.ParamType):  # type: ignore[type-arg]  # generic from Click 8.4 on
    """A whole number of at least `least`."""

    name = "N"

    def __init__(self, least: int) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        if re.fullmatch(r"[+-]?[0-9]{1,18}", value) and int(value) >= self._least:
            return int(value)
        self.fail(f"expected a whole number of at least {self._least}, found {value!r}", param, ctx)


class Text(click.ParamType):  # type: ignore[type-arg]
    """Some text, not none; completed from the choices of a group of conf/, if one is given."""

    def __init__(self, name: str, group: str = "") -> None:
        self.name = name
        self._group = group

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail(f"expected {self.name}, found nothing", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        from tencost.config.composition import choice_names

        choices = choice_names(self._group) if self._group else []
        return [CompletionItem(choice) for choice in choices if choice.startswith(incomplete)]


class Names(Text):
    """Names with commas between them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        names = super().convert(value, param, ctx)
        return [name.strip() for name in names.split(",") if name.strip()]


class PathType(Text):
    """A file or folder, ~ for the home folder."""

    def __init__(self, name: str = "PATH") -> None:
        super().__init__(name)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Path(super().convert(value, param, ctx)).expanduser()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        del ctx, param
        return [CompletionItem(incomplete, type="file")]


class ValueOption(click.Option):
    """An option with a value; see :func:`option`."""

    def __init__(
        self, *arguments: Any, old: Sequence[str] = (), old_option: str = "", **keywords: Any
    ) -> None:
        self.old_option = old_option
        if isinstance(keywords["type"], Whole | Text):
            keywords.setdefault("metavar", keywords["type"].name)
        super().__init__(*arguments, **keywords)
        self._old = tuple(old)

    def old_words(self, *, every: bool) -> list[str]:
        """Return the words that stood before `=` in the old spelling: of `every` option, or where it has its own."""
        spelt = [*self.opts, self.old_option]
        names = [name.lstrip("-") for name in spelt if name.startswith("--") and every]
        return [*names, *(name.replace("-", "_") for name in names), *self._old]


def option(
    name: str, kind: Any, help: str, default: Any = None, *, parameter: str = "", **keywords: Any
) -> ValueOption:
    """Declare an option with a value.

    Args:
        name: ``--name``; with a short one ``-n/--name``.
        kind: its type, Click's or one of this module.
        help: a sentence.
        default: shown in the help, if there is one.
        parameter: what the command's function calls it; the option's own name unless given.
        keywords: those of :class:`click.Option`; `old`, names of the option in the old spelling beside its own;
            `old_option`, its former name with dashes.
    """
    names = [*name.split("/"), *([parameter] if parameter else [])]
    if default is not None:
        keywords |= {"default": default, "show_default": True}
    return ValueOption(names, type=kind, help=help, **keywords)


def flag(name: str, help: str, *, parameter: str = "") -> click.Option:
    """Declare an option without a value; see :func:`option`."""
    names = [*name.split("/"), *([parameter] if parameter else [])]
    return click.Option(names, is_flag=True, help=help)


def project() -> Path:
    """Return the project's root."""
    from tencost.config import composition

    return composition.config_folder()[0]


def imported(function: str) -> Callable[..., Any]:
    """Return the function ``module:name``, whose module is imported when it is called."""
    module, _, name = function.partition(":")

    def call(*arguments: Any, **keywords: Any) -> Any:
        return getattr(import_module(module), name or "run")(*arguments, **keywords)

    return call


def command_options(ctx: click.Context) -> list[click.Option]:
    """Return all options of a command, the common ones included."""
    return [param for param in ctx.command.get_params(ctx) if isinstance(param, click.Option)]


def path_of(ctx: click.Context) -> str:
    """Return the words that name a command, without `tencost`."""
    return " ".join(ctx.command_path.split()[1:])


class _WithExamples(click.Command):
    """A command whose help ends with whole command lines, unwrapped so that they can be copied."""

    examples: tuple[str, ...]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Command(_WithExamples):
    """A command of the house.

    Attributes:
        examples: whole command lines, shown in the help.
        old_spelling: whether name=VALUE is understood for every option with a value, and not only where it has a name
            of its own for that.
    """

    old_spelling = True

    def __init__(
        self,
        name: str,
        function: str | Callable[..., Any],
        help: str,
        *,
        examples: Sequence[str],
        params: Sequence[click.Parameter] = (),
    ) -> None:
        """Declare a command.

        Args:
            name: its last word.
            function: gets the parameters by name; as text, ``module:name``, the project's root as `root`, too.
            help: what it does.
            examples: see above.
            params: arguments and options.
        """
        settings = {**SETTINGS, "ignore_unknown_options": True}
        super().__init__(name, context_settings=settings, help=help, params=list(params))
        self.examples = tuple(examples)
        self.function = function
        if isinstance(function, str):
            self.callback = lambda **options: imported(function)(root=project(), **options)
        else:
            self.callback = function

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = self._replace_old_spelling(ctx, args)
        if not ctx.resilient_parsing and not set(words) & set(HELP):
            try:
                self._check(ctx, words)
            except click.UsageError as error:
                error.ctx = error.ctx or ctx  # Click's parser does not say where it was
                raise
        return super().parse_args(ctx, words)

    def invoke(self, ctx: click.Context) -> Any:
        extras.require_extra(path_of(ctx))
        return super().invoke(ctx)

    def _replace_old_spelling(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Return the words with every old spelling replaced, and print how it is written now."""
        names: dict[str, str] = {}
        renamed: dict[str, str] = {}
        takers = set()
        for param in command_options(ctx):
            if isinstance(param, ValueOption):
                renamed |= {param.old_option: param.opts[-1]} if param.old_option else {}
                names |= dict.fromkeys(param.old_words(every=self.old_spelling), param.opts[-1])
                takers.update([*param.opts, param.old_option])
        words = list(args)
        replaced: list[tuple[str, str]] = []
        for index, word in enumerate(args):
            key, equals, text = word.partition("=")
            literal = "--" in args[:index] or (args[:index][-1:] and args[index - 1] in takers)
            if equals and key in names and not literal:
                words[index] = f"{names[key]}={text}"
                replaced.append((word, f"{names[key]} {shlex.quote(text)}"))
            elif key in renamed and not literal:
                words[index] = renamed[key] + equals + text
                replaced.append((key, renamed[key]))
        if replaced and not ctx.resilient_parsing:
            old, new = (" ".join(spelling) for spelling in zip(*replaced, strict=True))
            sys.stderr.write(f"tencost: old spelling: {old}; write {new}\n")
        return words

    def _check(self, ctx: click.Context, words: list[str]) -> None:
        """Refuse unknown options and options given twice; Click finds every other mistake."""
        parsed, extra, order = self.make_parser(ctx).parse_args(list(words))
        literal = words[words.index("--") + 1 :] if "--" in words else []
        plain = list(extra)
        for param in self.get_params(ctx):
            if isinstance(param, click.Argument):
                text = parsed.get(param.name or "")
                if isinstance(text, str | list | tuple):  # else Click's sentinel: no word
                    plain += [text] if isinstance(text, str) else text
        options = command_options(ctx)
        valid = [name for param in options for name in param.opts]
        for word in plain:
            if re.match(r"-[^0-9]", word) and word not in literal:
                raise click.NoSuchOption(word.partition("=")[0], possibilities=valid, ctx=ctx)
            if self.old_spelling and re.fullmatch(r"[a-z_]+=\S*", word) and not Path(word).exists():
                raise click.UsageError(
                    f"expected options of {', '.join(valid)}, found {word!r}", ctx
                )
        if extra:
            raise click.UsageError(f"expected no more words, found {' '.join(extra)!r}", ctx)
        for param in options:
            text, times = parsed.get(param.name or ""), order.count(param)
            if isinstance(text, str) and text.startswith("--"):
                raise click.UsageError(
                    f"expected a value after {param.opts[-1]}, found the option {text}", ctx
                )
            if times > 1 and not param.multiple:
                raise click.UsageError(
                    f"expected {param.opts[-1]} once, found it {times} times", ctx
                )


class Group(_WithExamples, click.Group):
    """A command that has sub-commands, in the order in which they were declared."""

    def __init__(
        self,
        name: str,
        help: str,
        *,
        examples: Sequence[str],
        commands: Sequence[click.Command] = (),
    ) -> None:
        super().__init__(
            name, help=help, commands=commands, context_settings=SETTINGS, no_args_is_help=False
        )
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

    def refuse(self, ctx: click.Context, word: str) -> None:
        """Say what a word after the group's name may be."""
        raise click.UsageError(
            f"expected `{ctx.command_path}` and one of {', '.join(self.commands)}, found {word}",
            ctx,
        )
