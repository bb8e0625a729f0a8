from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vm.rig.apt import (
    Source,
    deb822_sources,
    debian_mirror,
    depends,
    host_mirror,
    list_sources,
    stanzas,
)
from tests.vm.rig.command import RigError

DEB822 = """\
# made by the installer
Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://vendor.example/apt
Suites: stable
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 -----END PGP PUBLIC KEY BLOCK-----
"""

names = st.from_regex(r"[A-Z][A-Za-z-]{0,15}", fullmatch=True)
values = st.from_regex(r"[!-~]([ -~]{0,30}[!-~])?", fullmatch=True)


@given(st.lists(st.dictionaries(names, values, min_size=1), max_size=5), st.integers(1, 3))
def test_stanzas_give_back_what_was_written(written: list[dict[str, str]], blank: int) -> None:
    blocks = ("\n".join(f"{n}: {v}" for n, v in fields.items()) for fields in written)
    assert list(stanzas(("\n" * (blank + 1)).join(blocks))) == written


def test_a_continuation_line_belongs_to_its_field() -> None:
    text = "Package: a\nDescription: short\n long one\n .\n end\nSize: 1\n"
    assert list(stanzas(text)) == [
        {"Package": "a", "Description": "short\nlong one\n.\nend", "Size": "1"}
    ]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("", ()),
        ("kmod", ("kmod",)),
        ("kmod, linux-base (>= 4.3~), dracut | initramfs-tools", ("kmod", "linux-base", "dracut")),
        ("python3:any, libc6 [amd64]", ("python3", "libc6")),
        ("a,\nb (= 1),\n", ("a", "b")),
    ],
)
def test_depends_names_the_first_of_each_alternative(field: str, expected: tuple[str, ...]) -> None:
    assert depends({"Depends": field}) == expected


def test_depends_puts_what_is_needed_to_unpack_first() -> None:
    assert depends({"Depends": "b", "Pre-Depends": "a"}) == ("a", "b")


def test_only_enabled_binary_sources_are_read_from_deb822() -> None:
    uris = [source.uri for source in deb822_sources(DEB822)]
    assert uris == [
        "http://mirror.example/debian",
        "http://second.example/debian",
        "http://vendor.example/apt",
    ]


def test_a_key_given_in_full_is_not_taken_for_a_path() -> None:
    first, *_, last = deb822_sources(DEB822)
    assert first.signed_by == "/usr/share/keyrings/debian.gpg"
    assert last.signed_by is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "deb http://m.example/debian bookworm main contrib # the mirror",
            Source("http://m.example/debian", ("bookworm",), ("main", "contrib")),
        ),
        (
            "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian bookworm main",
            Source("http://m.example/debian", ("bookworm",), ("main",), "/k.gpg"),
        ),
        ("deb http://m.example/flat ./", Source("http://m.example/flat", ("./",), ())),
    ],
)
def test_a_one_line_source_is_read(line: str, expected: Source) -> None:
    assert list(list_sources(f"# comment\n{line}\n")) == [expected]


@pytest.mark.parametrize("line", ["# deb http://m.example/d a main", "deb-src http://m a main", ""])
def test_comments_and_source_packages_are_no_binary_source(line: str) -> None:
    assert list(list_sources(line)) == []


def test_the_mirror_is_the_one_that_serves_the_hosts_release() -> None:
    assert debian_mirror(deb822_sources(DEB822), "bookworm").uri == "http://mirror.example/debian"


@pytest.mark.parametrize("sources", [[], [Source("http://m.example", ("bookworm",), ("contrib",))]])
def test_no_mirror_is_an_error_that_names_the_release(sources: Iterable[Source]) -> None:
    with pytest.raises(RigError, match="Debian bookworm main"):
        debian_mirror(sources, "bookworm")


def test_the_line_for_another_suite_keeps_mirror_and_key() -> None:
    source = next(deb822_sources(DEB822))
    key = "[signed-by=/usr/share/keyrings/debian.gpg]"
    assert source.line("trixie") == f"deb {key} http://mirror.example/debian trixie main"


def test_the_host_mirror_is_found_in_either_style_of_file(tmp_path: Path) -> None:
    parts = tmp_path / "apt/sources.list.d"
    parts.mkdir(parents=True)
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    (parts / "old.list.disabled").write_text("deb http://off.example/debian bookworm main\n")
    (parts / "vendor.list").write_text("deb http://vendor.example bookworm-vendor main\n")
    with pytest.raises(RigError, match="no apt source"):
        host_mirror(tmp_path)
    (parts / "debian.sources").write_text(DEB822)
    assert host_mirror(tmp_path).uri == "http://mirror.example/debian"
    (tmp_path / "apt/sources.list").write_text("deb http://first.example/debian bookworm main\n")
    assert host_mirror(tmp_path).uri == "http://first.example/debian"


def test_a_host_without_a_codename_is_refused(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text("ID=other\n")
    with pytest.raises(RigError, match="not a Debian release"):
        host_mirror(tmp_path)
