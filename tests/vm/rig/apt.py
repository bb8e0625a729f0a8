"""Debian packages: the host's own, and other suites' through a private apt configuration.

The private configuration takes the host's mirror, keyring and proxy and leaves the host's sources,
lists and installed packages as they are.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.vm.rig.command import RigError, run

UPDATE_S = 180
INSTALL_S = 600
DOWNLOAD_S = 300


@dataclass(frozen=True, slots=True)
class Source:
    """One binary package source of the host: where, which suites, and the key it is signed by."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str | None = None

    def line(self, suite: str) -> str:
        """Return the sources.list line for another suite's main component on this mirror."""
        options = f"[signed-by={self.signed_by}] " if self.signed_by else ""
        return f"deb {options}{self.uri} {suite} main"


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the stanzas of a deb822 text (a package index, a .sources file) as field to value.

    A continuation line is joined to its field by a newline; comment lines are left out.
    """
    for block in re.split(r"\n(?:[ \t]*\n)+", text):
        fields: dict[str, str] = {}
        name = ""
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                if name:
                    fields[name] += "\n" + line.strip()
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        if fields:
            yield fields


def depends(stanza: dict[str, str]) -> tuple[str, ...]:
    """Return the names a package depends on: the first of each alternative, versions left out."""
    wanted = ",".join(filter(None, (stanza.get("Pre-Depends"), stanza.get("Depends"))))
    firsts = (clause.split("|")[0].strip() for clause in wanted.split(","))
    return tuple(re.split(r"[\s(:\[]", first)[0] for first in firsts if first)


def deb822_sources(text: str) -> Iterator[Source]:
    """Yield the enabled binary sources of a `.sources` file, one for each URI."""
    for fields in stanzas(text):
        if "deb" not in fields.get("Types", "").split() or fields.get("Enabled", "yes") == "no":
            continue
        # A key given in full instead of by path cannot go into a one-line source.
        key = fields.get("Signed-By", "")
        for uri in fields.get("URIs", "").split():
            yield Source(
                uri,
                tuple(fields.get("Suites", "").split()),
                tuple(fields.get("Components", "").split()),
                key if key.startswith("/") else None,
            )


def list_sources(text: str) -> Iterator[Source]:
    """Yield the binary sources of a `sources.list` file in the one-line style."""
    pattern = re.compile(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+[^\s#]+)*)")
    for line in text.splitlines():
        if match := pattern.match(line.strip()):
            options, uri, suite, components = match.groups()
            signed_by = re.search(r"signed-by=(/\S+)", options or "")
            key = signed_by[1] if signed_by else None
            yield Source(uri, (suite,), tuple(components.split()), key)


def debian_mirror(sources: Iterable[Source], codename: str) -> Source:
    """Return the source that serves the host's own release `codename`, whoever else is configured.

    Raises RigError when there is none.
    """
    for source in sources:
        if codename in source.suites and "main" in source.components:
            return source
    raise RigError(f"the host has no apt source for Debian {codename} main")


def host_mirror(etc: Path = Path("/etc")) -> Source:
    """Return the Debian mirror this host is set up for; raises RigError when it has none."""
    found: list[Source] = []
    for path in sorted([etc / "apt/sources.list", *(etc / "apt/sources.list.d").glob("*")]):
        if path.suffix == ".sources":
            found += deb822_sources(path.read_text())
        elif path.suffix == ".list" and path.exists():
            found += list_sources(path.read_text())
    codename = re.search(r"(?m)^VERSION_CODENAME=(\w+)", (etc / "os-release").read_text())
    if not codename:
        raise RigError("the host is not a Debian release: its os-release names no codename")
    return debian_mirror(found, codename[1])


def install(packages: Iterable[str]) -> None:
    """Install those of `packages` the host lacks; needs root only when one is missing."""
    listed = run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"], timeout_s=30)
    present = {line.split()[0] for line in listed.splitlines() if line.endswith(" installed")}
    if missing := sorted(set(packages) - present):
        run(["apt-get", "update", "-qq"], timeout_s=UPDATE_S)
        run(
            ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing],
            timeout_s=INSTALL_S,
            env={"DEBIAN_FRONTEND": "noninteractive"},
        )


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite's package index, private to the rig, kept in `directory`."""

    directory: Path

    def update(self, source: Source, suite: str) -> None:
        """Fetch the suite's index from the mirror."""
        base = self.directory
        for part in ("lists/partial", "archives/partial", "state", "none"):
            (base / part).mkdir(parents=True, exist_ok=True)
        (base / "state/status").touch()
        (base / "sources.list").write_text(source.line(suite) + "\n")
        settings = {
            "Dir::Etc::SourceList": base / "sources.list",
            "Dir::Etc::SourceParts": base / "none",
            "Dir::Etc::PreferencesParts": base / "none",
            "Dir::State": base / "state",
            "Dir::State::Lists": base / "lists",
            "Dir::State::status": base / "state/status",
            "Dir::Cache": base,
            # The cache may be closed to the user that apt would otherwise download as.
            "APT::Sandbox::User": "root",
        }
        text = "".join(f'{name} "{value}";\n' for name, value in settings.items())
        (base / "apt.conf").write_text(text)
        self._apt("apt-get", "update", "-qq", timeout_s=UPDATE_S)

    def show(self, package: str) -> dict[str, str]:
        """Return the stanza of the package's newest version; raises RigError when unknown."""
        text = self._apt("apt-cache", "show", "--no-all-versions", package, timeout_s=60)
        return next(stanzas(text))

    def download(self, packages: Iterable[str], into: Path) -> list[Path]:
        """Download packages, verified by apt, and return their .deb files."""
        self._apt("apt-get", "download", "-qq", *packages, cwd=into, timeout_s=DOWNLOAD_S)
        return sorted(into.glob("*.deb"))

    def _apt(self, *argv: str, timeout_s: float, cwd: Path | None = None) -> str:
        configuration = {"APT_CONFIG": str(self.directory / "apt.conf")}
        return run(argv, timeout_s=timeout_s, cwd=cwd, env=configuration)
