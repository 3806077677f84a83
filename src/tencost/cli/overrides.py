"""Commands that read the configuration: ``tencost <command> [OPTIONS] [OVERRIDES]``, once or as a sweep.

Overrides are Hydra's (``model=mlp``, ``model.eta=0.05``, ``+key=value``, ``~key``, ``'seeds=[0,1]'``), options may
stand before, between and after them. A command says which groups and fields of the configuration it uses: its help
lists those and shell completion offers them.
"""

from __future__ import annotations

import itertools
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from tencost.cli import extras, grammar
from tencost.cli.fields import FieldHelp, described_fields
from tencost.config.parts import NETWORK_FILES, Parts

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
    key, equals, written = incomplete[len(mark) :].partition("=")
    choices = composition.group_choices()
    choices |= {word: choices.pop(group) for word, group in _groups_by_word(uses).items()}
    words = [spoken(group, uses) for group in uses]
    if equals:
        before, comma, begun = written.rpartition(",")
        for choice in choices.get(key, []):
            if choice.startswith(begun) and choice not in before.split(","):
                yield f"{mark}{key}={before}{comma}{choice}"
        return
    offered = [group for group in choices if group in words or group == "experiment"]
    if "." in key:
        offered += [field.name for _, rows in sections(uses) for field in rows]
    else:
        offered += [f"{name.partition('.')[0]}." for name in uses if "." in name]
        offered += [name for name in uses if name not in choices and "." not in name]
    end = "" if mark == "~" else "="
    for name in dict.fromkeys(offered):
        if name.startswith(key):
            yield f"{mark}{name}" if name.endswith(".") else f"{mark}{name}{end}"


def sections(
    uses: Sequence[str], defaults: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[str, list[FieldHelp]]]:
    """Yield (title, fields) for each group of the configuration that a command uses, then for what is in no group.

    Args:
        uses: groups and fields.
        defaults: group -> the command's own default choice, where it has one.
    """
    from tencost.config import Config, ModelConfig, composition
    from tencost.config.graphs import GraphModelConfig
    from tencost.config.parts import FAMILIES, GRAPH_FAMILIES

    families: dict[str, tuple[type[Any], Parts]] = {
        "model": (ModelConfig, FAMILIES),
        "graph_model": (GraphModelConfig, GRAPH_FAMILIES),
    }
    hints = typing.get_type_hints(Config)
    choices = composition.group_choices()
    for group in (group for group in uses if group in choices):
        word, default = spoken(group, uses), defaults.get(group, choices[group][0])
        if group not in families:
            values = composition.choice_values(group, default)
            described = described_fields(hints[group], f"{word}.", values)
            yield f"Fields of {word} (defaults of {word}={default})", list(described)
            continue
        base, parts = families[group]
        values = composition.choice_values(group, default)
        common = list(described_fields(base, f"{word}.", values))
        yield f"Fields of {word}, of every family", common
        for name in choices[group]:
            values = composition.choice_values(group, name)
            where = f"conf/{word}/{name}.yaml: family"
            schema = parts.load(values.get("family"), where).config
            described = described_fields(schema, f"{word}.", values)
            names = {field.name for field in common}
            yield (
                f"Fields of {word} with {word}={name}",
                [field for field in described if field.name not in names],
            )
    single = [name for name in uses if name not in choices]
    others = [field for field in described_fields(Config, "", {}) if field.name in single]
    for name in ("paths", "rule"):
        inner = described_fields(hints[name], f"{name}.", {})
        others += [field for field in inner if field.name in uses or name in uses]
    yield "Other fields", others


def _of_network_file(word: str) -> list[str]:
    """Return the overrides that a network's file stands for (model.onnx, network=model.onnx); another word as it is."""
    name = word.removeprefix("network=")
    source = NETWORK_FILES.get(Path(name).suffix)
    if source is None or "=" in name:
        return [word]
    path = str(Path(name).expanduser().absolute()).replace("'", r"\'")
    return [f"network={source}", f"network.path='{path}'"]


class StageCommand(grammar.Command):
    """A command that reads the configuration.

    Attributes:
        uses: the groups of conf/ and the other fields of :class:`tencost.config.Config` that it reads.
    """

    old_spelling = False

    def __init__(
        self,
        name: str,
        function: str | Callable[..., Any],
        help: str,
        *,
        uses: str,
        examples: Sequence[str],
        params: Sequence[click.Option] = (),
        sweep: Callable[[list[str]], Any] | None = None,
        defaults: Sequence[str] = (),
        needs_network: bool = False,
    ) -> None:
        """Declare a command.

        Args:
            name: its last word.
            function: runs the stage, gets the configuration, the project's root and the options by name; as text,
                ``module`` with a function `run`, or ``module:name``.
            help: what it does.
            uses: see above, with spaces between them.
            examples: whole command lines.
            params: options of its own.
            sweep: gets the overrides where --multirun is given; None: every job calls `function`.
            defaults: overrides that hold where no word is for the same key.
            needs_network: whether a word has to name the network: no default is meant.
        """
        self.options = tuple(str(param.name) for param in params)
        self._function = grammar.imported(function) if isinstance(function, str) else function
        self._sweep = sweep
        self.uses = tuple(uses.split())
        self._defaults = tuple(self.of_groups(defaults))
        self._needs_network = needs_network
        arguments = (OverridesArgument(self.uses), *params, *_common_options())
        super().__init__(name, function, help, examples=examples, params=arguments)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            if "network" in self.uses:
                words = map(_of_network_file, ctx.params["overrides"])
                ctx.params["overrides"] = tuple(itertools.chain.from_iterable(words))
            for word in ctx.params["overrides"]:
                if "=" not in word and not word.startswith("~"):
                    self.refuse(ctx, word)
        return rest

    def refuse(self, ctx: click.Context, word: str) -> None:
        """Say what a word that is no override should be."""
        group = ctx.parent.command if ctx.parent else None
        words = f"{', '.join(group.commands)} or " if isinstance(group, StageGroup) else ""
        if "network" in self.uses:
            words = f"a network's file (*{', *'.join(NETWORK_FILES)}), {words}"
        raise click.UsageError(
            f"expected {words}overrides of the form key=value, found {word!r}", ctx
        )

    def invoke(self, ctx: click.Context) -> Any:
        from tencost.config import composition

        options = dict(ctx.params)
        words = self.of_groups(options.pop("overrides"))
        keys = {word.partition("=")[0] for word in words}
        defaults = [word for word in self._defaults if word.partition("=")[0] not in keys]
        overrides = [*defaults, *words]
        multirun, cfg, resolve, info = (
            options.pop(name) for name in ("multirun", "cfg", "resolve", "info")
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
        extras.require_extra(name)
        if self._needs_network and not {"network", "experiment"} & {
            key.lstrip("+") for key in keys
        }:
            raise click.UsageError(
                f"expected a network, found none: tencost {name} model.onnx, or a name of conf/network/: "
                f"tencost {name} network=bert_tiny",
                ctx,
            )
        if multirun and self._sweep is not None:
            return self._sweep(overrides)
        function = partial(self._function, **options) if options else self._function
        return composition.run_stage(function, name, overrides, multirun=multirun)

    def of_groups(self, words: Sequence[str]) -> list[str]:
        """Return overrides with the names of groups and fields, where the command has another word for a group."""
        groups = _groups_by_word(self.uses)
        parts = [re.fullmatch(r"([~+]*)(\w*)(.*)", word, re.DOTALL) for word in words]
        return [f"{part[1]}{groups.get(part[2], part[2])}{part[3]}" for part in parts if part]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path.strip(), " ".join(self.collect_usage_pieces(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_fields(formatter)

    def format_fields(self, formatter: click.HelpFormatter) -> None:
        """Write the parts of the help that are about the configuration."""
        from tencost.config import composition

        choices = composition.group_choices()
        pairs = (word.partition("=")[::2] for word in self._defaults)
        defaults = {group: choice for group, choice in pairs if choice in choices.get(group, ())}
        for group, choice in defaults.items():
            choices[group].remove(choice)
            choices[group].insert(0, choice)
        rows = [
            (spoken(group, self.uses), ", ".join(choices[group]))
            for group in choices
            if group in self.uses or group == "experiment"
        ]
        with formatter.section("Choices (group=choice), the default first"):
            formatter.write_dl(rows)
        for title, described in sections(self.uses, defaults):
            if described:
                with formatter.section(title):
                    formatter.write_dl([field.row() for field in described], col_max=26)


class StageGroup(grammar.Group):
    """A stage that also has sub-commands: `tencost records dataset=x` is the stage, `tencost records query` is not.

    Attributes:
        stage: the command where no word names another.
    """

    def __init__(
        self,
        stage: StageCommand,
        help: str,
        *,
        examples: Sequence[str],
        commands: Sequence[click.Command],
    ) -> None:
        name = str(stage.name)
        super().__init__(name, help, examples=(*stage.examples, *examples), commands=commands)
        self.stage = stage

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_command = args[:1] and args[0] in (*self.commands, *grammar.HELP)
        if not is_command and (args or not ctx.resilient_parsing):
            args = [STAGE, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == STAGE:
            return STAGE, self.stage, args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        offered = super().shell_complete(ctx, incomplete)
        names = {completion.value for completion in offered}
        options = self.stage.shell_complete(ctx, incomplete)
        offered += [completion for completion in options if completion.value not in names]
        return offered + [CompletionItem(word) for word in completions(incomplete, self.stage.uses)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[OPTIONS] [OVERRIDES]... | COMMAND ..."]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        click.Command.format_options(self.stage, ctx, formatter)
        self.stage.format_fields(formatter)


def _common_options() -> list[click.Option]:
    return [
        grammar.flag(
            "-m/--multirun", "Run every combination of comma-separated choices: model=xgb,mlp."
        ),
        grammar.option(
            "-c/--cfg",
            click.Choice(["job"]),
            "Print the configuration with all defaults as YAML instead of running.",
        ),
        grammar.flag("--resolve", "With --cfg: references replaced with their values."),
        grammar.flag(
            "-i/--info",
            "Print where the configuration is looked for, what is chosen and what could be, instead of running.",
        ),
    ]


def _print_info(overrides: list[str], uses: Sequence[str]) -> None:
    from tencost.config import composition

    composed = composition.explain(overrides)
    choices = composition.group_choices()
    rows = [
        (f"{spoken(group, uses)}={composed.chosen[group] or 'null'}", ", ".join(choices[group]))
        for group in choices
        if group in uses or group == "experiment"
    ]
    formatter = click.HelpFormatter(max_width=grammar.SETTINGS["max_content_width"])
    formatter.write_dl([("project", str(composed.root))])
    with formatter.section("Search path"):
        formatter.write_dl(list(composed.sources))
    with formatter.section("Chosen (of)"):
        formatter.write_dl(rows)
    sys.stdout.write(formatter.getvalue().rstrip() + "\n")
