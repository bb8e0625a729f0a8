"""The commands that install the package name the file that `make deb` builds."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("document", "folder"), [("README.md", "./build/"), ("docs/operating.md", "./")]
)
def test_the_package_that_is_installed_is_the_one_that_is_built(document: str, folder: str) -> None:
    (named,) = re.findall(r"apt install (\S+_amd64\.deb)", (ROOT / document).read_text())
    assert named == f"{folder}sits_{version('sits')}_amd64.deb"


def test_both_documents_start_it_by_the_same_command() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/operating.md")]
    assert all("# systemctl enable --now sitsd\n" in text for text in texts)
