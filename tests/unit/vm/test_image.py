import dataclasses
from pathlib import Path

from tests.vm.rig.image import Recipe, furnish, recipe

RECIPE = Recipe("bookworm", ("systemd",), ("slow.service",), {"etc/name": ("text\n", 0o640)})


def test_a_digest_changes_with_every_part_of_the_recipe() -> None:
    changed = (
        dataclasses.replace(RECIPE, suite="trixie"),
        dataclasses.replace(RECIPE, packages=("systemd", "kmod")),
        dataclasses.replace(RECIPE, masked=()),
        dataclasses.replace(RECIPE, files={"etc/name": ("text\n", 0o600)}),
    )
    assert len({RECIPE.digest, *(one.digest for one in changed)}) == 5


def test_the_recipe_is_the_same_each_time() -> None:
    assert recipe().digest == recipe().digest


def test_a_root_file_system_gets_files_masks_and_the_payload_unit(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/name").symlink_to("/nowhere")
    for _ in range(2):
        furnish(tmp_path, RECIPE)
    units = tmp_path / "etc/systemd/system"
    assert (tmp_path / "etc/name").read_text() == "text\n"
    assert (tmp_path / "etc/name").stat().st_mode & 0o777 == 0o640
    assert (units / "slow.service").readlink() == Path("/dev/null")
    assert (units / "default.target").readlink().name == "multi-user.target"
    assert (units / "multi-user.target.wants/payload.service").is_symlink()
