"""`tencost records quarantine`, `compact`, `vacuum`, `migrate`, `rename` and `delete`: what changes a record store."""

from __future__ import annotations

import click

from tencost.cli.grammar import Text, Whole, option
from tencost.cli.records import DATASET, HARDWARE, project, store_option
from tencost.cli.records import RECORDS as RECORDS

_dry_run = click.option(
    "--dry-run", is_flag=True, help="Say what would change, and change nothing."
)


@RECORDS.command(
    "quarantine",
    examples=["tencost records quarantine", "tencost records quarantine --release all"],
)
@option("--release", type=Text("ID|all"), help="Let this record, or all, into look-ups.")
@store_option
def quarantine(release: str | None, store: str | None) -> None:
    """List what is kept out of look-ups and why, or let it in."""
    from tencost.records import store_commands

    store_commands.quarantine(project(), store_uri=store, release=release)


@RECORDS.command("compact", examples=["tencost records compact"])
@store_option
def compact(store: str | None) -> None:
    """Rewrite the store's small files into sorted ones.

    Look-ups stay fast after many small imports.
    """
    from tencost.records import store_commands

    store_commands.compact(project(), store_uri=store)


@RECORDS.command(
    "migrate", examples=["tencost records migrate --dry-run", "tencost records migrate"]
)
@_dry_run
@store_option
def migrate(dry_run: bool, store: str | None) -> None:
    """Bring a store of an earlier version up to date: each record gets its code generator.

    Records get ids that tell the generator, and keep the ids that they had as aliases. A second call changes nothing.
    """
    from tencost.records import store_commands

    store_commands.migrate(project(), store_uri=store, dry_run=dry_run)


@RECORDS.command(
    "vacuum",
    examples=["tencost records vacuum --dry-run", "tencost records vacuum --hours 48"],
)
@option(
    "--hours",
    type=Whole(1),
    default=168,
    show_default=True,
    help="Versions of the last so many hours stay readable; more than the longest import takes.",
)
@_dry_run
@store_option
def vacuum(hours: int, dry_run: bool, store: str | None) -> None:
    """Delete files that no recent version of the store has.

    What was deleted, compacted or left behind by killed writers is gone for good then.
    """
    from tencost.records import store_commands

    store_commands.vacuum(project(), hours=hours, store_uri=store, dry_run=dry_run)


@RECORDS.command(
    "rename",
    examples=[
        "tencost records rename --hardware adreno adreno-640 --dry-run",
        "tencost records rename --dataset roller roller-v100",
    ],
)
@option(
    "--hardware",
    type=HARDWARE,
    nargs=2,
    metavar="OLD NEW",
    help="The name that the records have, and the one that they get.",
)
@option("--dataset", type=DATASET, nargs=2, metavar="OLD NEW", help="The same of a dataset.")
@_dry_run
@store_option
def rename(
    hardware: tuple[str, str] | None,
    dataset: tuple[str, str] | None,
    dry_run: bool,
    store: str | None,
) -> None:
    """Correct the name of a hardware, or of a dataset.

    There may be records of the new name already. Versions of the table before it keep the old one.
    """
    from tencost.records import store_commands

    store_commands.rename(
        project(), hardware=hardware, dataset=dataset, store_uri=store, dry_run=dry_run
    )


@RECORDS.command(
    "delete",
    examples=[
        "tencost records delete --hardware adreno --dry-run",
        "tencost records delete --hardware adreno --source phones/a.log",
        "tencost records delete --where \"source.dataset = 'roller' AND status <> 'ok'\"",
    ],
)
@option("--hardware", type=HARDWARE, help="The device, as the store names it.")
@option(
    "--source",
    type=Text("FILE"),
    help="Only what was read from this file, as the records name it, or the end of its path.",
)
@option(
    "--where",
    type=Text("SQL"),
    help="Instead of both: which records go, as after WHERE in `records query sql`, from quarantine too.",
)
@_dry_run
@store_option
def delete(
    hardware: str | None,
    source: str | None,
    where: str | None,
    dry_run: bool,
    store: str | None,
) -> None:
    """Delete the records of a hardware, those of one file, or those that a condition names.

    Versions of the table before it still have them, until it is vacuumed.
    """
    from tencost.records import store_commands

    store_commands.delete(
        project(), hardware=hardware, source=source, where=where, store_uri=store, dry_run=dry_run
    )
