"""`python -m tests.walk`: the walk, kept in build/walk, and the README's screenshots of it."""

import shutil
from typing import Final

import click

from demo.rig import RigError
from tests.documented import ROOT
from tests.walk.small_png import smaller
from tests.walk.walk import walk

IMAGES: Final = ROOT / "docs" / "images"
INTO: Final = ROOT / "build" / "walk"
SHOWN: Final = {
    "page-light.png": "page-control-light-wide",
    "page-dark.png": "page-control-dark-wide",
}


@click.command()
@click.option("--seconds", default=45.0, show_default=True, help="How long each part is watched.")
@click.option("--images", is_flag=True, help=f"Put the pictures into {IMAGES.relative_to(ROOT)}.")
def main(seconds: float, images: bool) -> None:
    """Have a fault and find it as an operator would."""
    shutil.rmtree(INTO, ignore_errors=True)
    try:
        found = walk(INTO, seconds)
    except RigError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"named by sitsctl explain after {found.by_explain_s:.1f} s")
    click.echo(f"named on the page after {found.on_page_s:.1f} s")
    click.echo(f"{len(found.steps)} steps in {INTO.relative_to(ROOT)}")
    if images:
        for name, step in SHOWN.items():
            (picture,) = (path for path in found.steps if path.stem.endswith(step))
            (IMAGES / name).write_bytes(smaller(picture.read_bytes()))


if __name__ == "__main__":
    main()
