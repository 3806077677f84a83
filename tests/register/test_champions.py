"""The packaged champions: whole, traceable, chosen by instruction sets, and second to every registry."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tencost import cli
from tencost.config.composition import compose
from tencost.config.pipeline import read_params
from tencost.errors import BundleError, RegistryError
from tencost.models.manifest import MANIFEST
from tencost.models.programs.bundle import load_bundle
from tencost.programs.starting_points import shipped_starts
from tencost.register import champions, registry
from tencost.register.champions import (
    Champion,
    champion_for,
    packaged_at,
    packaged_champions,
    read_card,
    write_card,
)
from tencost.register.pull import (
    PackagedChampionWarning,
    champion_of_cpu,
    manifest_digest,
    pull,
    verify,
)

ROOT = Path(__file__).resolve().parents[2]
MakeBundle = Callable[..., Path]
Register = Callable[..., registry.Version]
WIDE, NARROW = "epyc-avx512-1c", "epyc-avx2-1c"


def flags_of(hardware: str) -> set[str]:
    return set(compose([f"hardware={hardware}"])[0].hardware.requires)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's root without a registry."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the packaged champions that a test may damage."""
    folder = shutil.copytree(champions.FOLDER, tmp_path / "champions")
    monkeypatch.setattr(champions, "FOLDER", folder)
    packaged_champions.cache_clear()
    yield folder
    packaged_champions.cache_clear()


def test_the_hardware_of_the_default_pipeline_is_packaged() -> None:
    assert [champion.hardware for champion in packaged_champions()] == [WIDE, NARROW]
    assert {WIDE, NARROW} == set(read_params(ROOT)["hardware"])


@pytest.mark.parametrize("champion", packaged_champions(), ids=lambda champion: champion.hardware)
def test_a_packaged_champion_is_what_its_card_says(champion: Champion) -> None:
    verify(champion.folder, champion.sha256)
    info = load_bundle(champion.folder).info
    assert (info.hardware, info.dataset) == (champion.hardware, champion.dataset)
    assert info.dataset_hash == champion.dataset_hash
    assert champion.model == f"tencost-{champion.hardware}"
    assert len(champion.commit) == 40, "trained at a commit, on files that do not differ from it"
    hardware = compose([f"hardware={champion.hardware}"])[0].hardware
    assert (champion.simd_bits, champion.requires) == (hardware.simd_bits, hardware.requires)
    assert shipped_starts(champion.folder)
    assert {path.name for path in champion.folder.iterdir()} == {MANIFEST, *info.files}
    assert all(path.stat().st_size < 3e6 for path in champion.folder.iterdir())
    assert packaged_at(champion.folder) == champion
    card = champion.folder.with_name(f"{champion.model}.md").read_text()
    assert f"# {champion.model} {champion.version}" in card
    assert "| model |" in card


@pytest.mark.parametrize(
    ("of", "simd_bits", "expected"),
    [(WIDE, None, WIDE), (WIDE, 512, WIDE), (WIDE, 256, NARROW), (NARROW, None, NARROW), (NARROW, 512, NARROW)],
)  # fmt: skip
def test_instruction_sets_choose(of: str, simd_bits: int | None, expected: str) -> None:
    assert champion_for(flags_of(of), "a CPU", simd_bits).hardware == expected


def test_a_cpu_that_none_fits_is_told_what_there_is() -> None:
    flags = flags_of(NARROW) - {"avx2", "fma"}
    with pytest.raises(RegistryError) as refusal:
        champion_for(flags, "an old CPU")
    assert f"{NARROW} (needs avx2, fma)" in str(refusal.value)
    assert f"{WIDE} (needs avx2, avx512bw" in str(refusal.value)
    assert "docs/how-to/measuring.md" in str(refusal.value)
    with pytest.raises(RegistryError, match="uses 256-bit vectors"):
        champion_for(flags_of(WIDE), "a CPU", 128)


def test_without_a_registry_its_address_is_the_packaged_one(nowhere: Path) -> None:
    with pytest.warns(PackagedChampionWarning, match=rf"tencost-{WIDE} .*tencost-zen5 .*commit"):
        folder = pull(f"models:/tencost-{WIDE}@champion", nowhere / "cache", root=nowhere)
    assert packaged_at(folder) is not None
    for address in (f"tencost-{WIDE}/1", f"tencost-{WIDE}@staging", "tencost-other@champion"):
        with pytest.raises(RegistryError, match=rf"Packaged with tencost: models:/tencost-{WIDE}@"):
            pull(f"models:/{address}", nowhere / "cache", root=nowhere)


def test_a_registry_is_never_replaced_for_an_address(
    registered: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"models:/tencost-{WIDE}@champion"
    with pytest.raises(RegistryError, match="no model"):
        pull(uri, tmp_path / "cache", root=project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(RegistryError, match="there is no registry"):
        pull(uri, tmp_path / "cache", root=tmp_path)


def test_the_user_s_registry_comes_first(
    register: Register, make_bundle: MakeBundle, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    flags = flags_of(WIDE)
    register(make_bundle(), champion=True)
    champion, folder, why = champion_of_cpu(flags, "this CPU", "no tencost-local", root=project)
    assert folder == champion.folder
    assert why.startswith(f"tencost-{WIDE} {champion.version}, packaged with tencost")
    assert "512-bit vectors, which this CPU has" in why
    assert why.endswith("registered: no tencost-local")

    register(make_bundle("mine", hardware=WIDE), champion=True)
    champion, folder, why = champion_of_cpu(flags, "this CPU", "no tencost-local", root=project)
    assert (champion.hardware, folder.name) == (WIDE, "1")
    assert load_bundle(folder).info.family == "random"
    assert why.startswith(f"the registry's models:/tencost-{WIDE}@champion; ")


def test_a_damaged_one_is_refused(box: Path, nowhere: Path) -> None:
    starts = box / f"tencost-{WIDE}" / "starts.json"
    starts.write_bytes(starts.read_bytes() + b" ")
    with (
        pytest.warns(PackagedChampionWarning),
        pytest.raises(BundleError, match=r"starts\.json: expected sha256"),
    ):
        pull(f"models:/tencost-{WIDE}@champion", nowhere / "cache", root=nowhere)
    manifest = box / f"tencost-{NARROW}" / MANIFEST
    manifest.write_bytes(manifest.read_bytes() + b" ")
    with pytest.raises(BundleError, match="does not have the registered sha256"):
        champion_of_cpu(flags_of(NARROW), "a CPU", "", root=nowhere)


@pytest.mark.parametrize(
    "text", ["", "# no front matter", "---\n- 1\n---\n", "---\ntencost: {model: x}\n---\n"]
)
def test_what_is_no_card(tmp_path: Path, text: str) -> None:
    card = tmp_path / "card.md"
    card.write_text(text)
    with pytest.raises(
        BundleError, match="expected YAML front matter whose key `tencost` has model"
    ):
        read_card(card)


def test_a_card_is_read_as_it_was_written(tmp_path: Path) -> None:
    champion = replace(packaged_champions()[0], description="a: b # c")
    write_card(champion, "# text\n\n---\n", tmp_path / "card.md")
    assert read_card(tmp_path / "card.md") == champion


def test_an_export_has_a_card_and_replaces_a_bundle(
    register: Register,
    make_bundle: MakeBundle,
    project: Path,
    client: object,
    run_id: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    for name, text in (("git_dirty", "true"), ("mlflow.source.git.commit", "c" * 40)):
        client.set_tag(run_id, name, text)  # type: ignore[attr-defined]
    uri = f"models:/tencost-{WIDE}@champion"
    first, second = make_bundle("first", hardware=WIDE), make_bundle("second", 2.0, hardware=WIDE)
    register(first, champion=True)
    cli.main(["register", "export", uri, "model", "--card"])
    card = read_card(project / "model.md")
    assert (card.model, card.version, card.hardware) == (f"tencost-{WIDE}", "2.0", WIDE)
    assert (card.sha256, card.dataset) == (manifest_digest(first), "toy")
    assert card.commit == "c" * 40 + "-dirty"
    assert card.simd_bits == 512

    register(second, champion=True)
    with pytest.raises(SystemExit):
        cli.main(["register", "export", uri, "model"])
    cli.main(["register", "export", uri, "model", "--card", "--replace"])
    assert manifest_digest(project / "model") == manifest_digest(second)
    assert read_card(project / "model.md").sha256 == manifest_digest(second)

    (project / "notes").mkdir()
    (project / "notes" / "notes.txt").write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(["register", "export", uri, "notes", "--replace"])
    assert (project / "notes" / "notes.txt").read_text() == "mine"
    capsys.readouterr()
    other = make_bundle("other", 4.0, hardware=WIDE)
    with pytest.raises(SystemExit) as stop:
        cli.main(["register", "export", str(other), "copy", "--card"])
    assert stop.value.code == 2
    assert f"--card: expected a version of tencost-{WIDE}" in capsys.readouterr().err
