"""Commands that read the configuration: ``tencost <command> [OPTIONS] [OVERRIDES]``, once or as a sweep.

Overrides are Hydra's (``model=mlp``, ``model.eta=0.05``, ``+key=value``, ``~key``, ``'seeds=[0,1]'``), options may
stand before, between and after them. A command says which groups and fields of the configuration it uses: its help
lists those and shell completion offers them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from tencost.cli import extras, grammar
from tencost.config.parts import Parts

HYDRA_MARKS = ("~", "+")
"""What an override may begin with, beside the name of a group or field."""
STAGE = ""
"""The name of a stage among the sub-commands of its group: it has none."""


class OverridesArgument(click.Argument):
    """The words that change the configuration; completed from the groups and fields that its command uses."""

    def __init__(self, uses: Sequence[str]) -> None:
        super().__init__(["overrides"], nargs=-1, type=click.UNPROCESSED)
        self._uses = tuple(uses)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        del ctx
        return [CompletionItem(word) for word in completions(incomplete, self._uses)]


def spoken(group: str, uses: Sequence[str]) -> str:
    """Return the word for a group: `model` for that of networks, too, in a command that uses no other model."""
    from tencost.config.composition import SHARED

    return SHARED[group] if group in SHARED and SHARED[group] not in uses else group


def _groups_by_word(uses: Sequence[str]) -> dict[str, str]:
    """Return the groups whose word in a command is another than their name: word -> group."""
    return {word: group for group in uses if (word := spoken(group, uses)) != group}


def completions(incomplete: str, uses: Sequence[str]) -> Iterator[str]:
    """Yield what a word may become.

    Choices after ``group=``, also in a list of them; otherwise names of groups, and fields once the group is written.
    """
    from tencost.config import composition

    mark = incomplete[:1] if incomplete[:1] in HYDRA_MARKS else ""
    key, equals, value = incomplete[len(mark) :].partition("=")
    choices = composition.group_choices()
    choices |= {word: choices.pop(group) for word, group in _groups_by_word(uses).items()}
    words = [spoken(group, uses) for group in uses]
    if equals:
        before, comma, begun = value.rpartition(",")
        taken = before.split(",")
        for choice in choices.get(key, []):
            if choice.startswith(begun) and choice not in taken:
                yield f"{mark}{key}={before}{comma}{choice}"
        return
    offered = [group for group in choices if group in words or group == "experiment"]
    if "." in key:
        offered += [told.name for _, rows in sections(uses) for told in rows]
    else:
        offered += [f"{name.partition('.')[0]}." for name in uses if "." in name]
        offered += [name for name in uses if name not in choices and "." not in name]
    end = "" if mark == "~" else "="
    for name in dict.fromkeys(offered):
        if name.startswith(key):
            yield f"{mark}{name}" if name.endswith(".") else f"{mark}{name}{end}"


def sections(uses: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield (title, fields) for each group of the configuration that a command uses, then for what is in no group."""
    import typing

    from tencost.cli.fields import told_fields
    from tencost.config import Config, ModelConfig, composition
    from tencost.config.graphs import GraphModelConfig
    from tencost.config.parts import FAMILIES, GRAPH_FAMILIES

    families: dict[str, tuple[type[Any], Parts]] = {
        "model": (ModelConfig, FAMILIES),
        "graph_model": (GraphModelConfig, GRAPH_FAMILIES),
    }
    hints = typing.get_type_hints(Config)
    choices = composition.group_choices()
    for group in uses:
        word = spoken(group, uses)
        if group in families:
            base, parts = families[group]
            common = [item.name for item in fields(base)]
            values = composition.choice_values(group, choices[group][0])
            told = list(told_fields(base, f"{word}.", values))
            yield f"Fields of {word}, of every family", told
            for name in choices[group]:
                values = composition.choice_values(group, name)
                where = f"conf/{word}/{name}.yaml: family"
                schema = parts.load(values.get("family"), where).config
                own = [
                    item
                    for item in told_fields(schema, f"{word}.", values)
                    if item.name.removeprefix(f"{word}.") not in common
                ]
                yield f"Fields of {word} with {word}={name}", own
        elif group in choices:
            chosen = choices[group][0]
            values = composition.choice_values(group, chosen)
            told = list(told_fields(hints[group], f"{word}.", values))
            yield f"Fields of {word} (defaults of {word}={chosen})", told
    single = [name for name in uses if name not in choices]
    others = [item for item in told_fields(Config, "", {}) if item.name in single]
    for name in ("paths", "rule"):
        inner = told_fields(hints[name], f"{name}.", {})
        others += [item for item in inner if item.name in uses or name in uses]
    yield "Other fields", others


class StageCommand(grammar.Command):
    """A command that reads the configuration.

    Attributes:
        uses: the groups of conf/ and the other fields of :class:`tencost.config.Config` that it reads.
    """

    old_spelling = False

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        uses: Sequence[str],
        examples: Sequence[str],
        help: str,
        options: Sequence[click.Option] = (),
        sweep: Callable[[list[str]], Any] | None = None,
        defaults: Sequence[str] = (),
    ) -> None:
        """Declare a command.

        Args:
            name: its last word.
            function: runs the stage; gets the configuration, the project's root and the options by name.
            uses: see above.
            examples: whole command lines.
            help: what it does.
            options: options of its own.
            sweep: gets the overrides where --multirun is given; None: every job calls `function`.
            defaults: overrides that hold where no word is for the same key.
        """
        self._function = function
        self._sweep = sweep
        self._defaults = tuple(defaults)
        self.uses = tuple(uses)
        super().__init__(
            name,
            params=[OverridesArgument(uses), *options, *_common_options()],
            examples=examples,
            help=help,
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            for word in ctx.params["overrides"]:
                if "=" not in word and not word.startswith("~"):
                    self.refuse(ctx, word)
        return rest

    def refuse(self, ctx: click.Context, word: str) -> None:
        """Say what a word that is no override should be."""
        group = ctx.parent.command if ctx.parent else None
        words = f"{', '.join(group.commands)} or " if isinstance(group, StageGroup) else ""
        raise click.UsageError(
            f"expected {words}overrides of the form key=value, found {word!r}", ctx
        )

    def invoke(self, ctx: click.Context) -> Any:
        from tencost.config import composition

        own = dict(ctx.params)
        overrides = self.of_groups(own.pop("overrides"))
        overrides = [*self._missing_defaults(overrides), *overrides]
        multirun, cfg, resolve, info = (
            own.pop(name) for name in ("multirun", "cfg", "resolve", "info")
        )
        if sum([multirun, cfg is not None, info]) > 1:
            raise click.UsageError("expected one of --multirun, --cfg and --info, found more", ctx)
        if resolve and cfg is None:
            raise click.UsageError("expected --cfg job with --resolve, found --resolve alone", ctx)
        if cfg is not None:
            sys.stdout.write(composition.as_yaml(overrides, resolve=resolve))
            return None
        if info:
            _print_info(overrides, self.uses)
            return None
        name = grammar.path_of(ctx)
        extras.require(name)
        if multirun and self._sweep is not None:
            return self._sweep(overrides)
        function = partial(self._function, **own) if own else self._function
        return composition.run_stage(function, name, overrides, multirun=multirun)

    def of_groups(self, words: Sequence[str]) -> list[str]:
        """Return overrides with the names of groups and fields, where the command has another word for a group."""
        groups = _groups_by_word(self.uses)

        def named(match: re.Match[str]) -> str:
            return match[1] + groups.get(match[2], match[2])

        return [re.sub(r"^([~+]*)(\w+)", named, word) for word in words]

    def _missing_defaults(self, words: Sequence[str]) -> list[str]:
        given = {word.partition("=")[0] for word in words}
        return [word for word in self._defaults if word.partition("=")[0] not in given]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_fields(formatter)

    def format_fields(self, formatter: click.HelpFormatter) -> None:
        """Write the parts of the help that are about the configuration."""
        from tencost.cli.fields import write_fields
        from tencost.config import composition

        choices = composition.group_choices()
        first = dict(word.split("=", 1) for word in self._defaults)
        rows = [
            (
                spoken(group, self.uses),
                ", ".join(sorted(choices[group], key=lambda one: one != first.get(group))),
            )
            for group in choices
            if group in self.uses
        ]
        with formatter.section("Choices (group=choice), the default first"):
            formatter.write_dl([*rows, ("experiment", ", ".join(choices["experiment"]))])
        for title, told in sections(self.uses):
            write_fields(title, iter(told), formatter)


class StageGroup(grammar.Group):
    """A stage that also has sub-commands: `tencost records dataset=x` is the stage, `tencost records query` is not.

    Attributes:
        stage: the command where no word names another.
    """

    def __init__(self, stage: StageCommand, *, examples: Sequence[str], help: str) -> None:
        super().__init__(stage.name, examples=(*stage.examples, *examples), help=help)
        self.stage = stage

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in (*self.commands, *grammar.HELP)
        if not named and (args or not ctx.resilient_parsing):
            args = [STAGE, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == STAGE:
            return STAGE, self.stage, args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        known = {item.value for item in found}
        options = self.stage.shell_complete(ctx, incomplete)
        found += [item for item in options if item.value not in known]
        return found + [CompletionItem(word) for word in completions(incomplete, self.stage.uses)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[OPTIONS] [OVERRIDES]... | COMMAND ..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self.stage, ctx, formatter)
        self.stage.format_fields(formatter)


def stage_function(module: str, name: str = "run") -> Callable[..., Any]:
    """Return a function of a stage's module, which is imported when it is called."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **keywords)

    return run


def _common_options() -> list[click.Option]:
    return [
        click.Option(
            ["-m", "--multirun"],
            is_flag=True,
            help="Run every combination of comma-separated choices: model=xgb,mlp.",
        ),
        grammar.ValueOption(
            ["-c", "--cfg"],
            type=click.Choice(["job"]),
            help="Print the configuration with all defaults as YAML instead of running.",
        ),
        click.Option(
            ["--resolve"], is_flag=True, help="With --cfg: references replaced with their values."
        ),
        click.Option(
            ["-i", "--info"],
            is_flag=True,
            help="Print where the configuration is looked for, what is chosen and what could be, instead of running.",
        ),
    ]


def _print_info(overrides: list[str], uses: Sequence[str]) -> None:
    from tencost.config import composition

    found = composition.explain(overrides)
    choices = composition.group_choices()
    formatter = click.HelpFormatter(max_width=grammar.SETTINGS["max_content_width"])
    formatter.write_dl([("project", str(found.root))])
    with formatter.section("Search path"):
        formatter.write_dl(list(found.sources))
    with formatter.section("Chosen (of)"):
        formatter.write_dl(
            [
                (
                    f"{spoken(group, uses)}={found.chosen[group] or 'null'}",
                    ", ".join(choices[group]),
                )
                for group in choices
                if group in uses or group == "experiment"
            ]
        )
    sys.stdout.write(formatter.getvalue().rstrip() + "\n")
