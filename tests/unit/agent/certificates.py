"""Real certificates by openssl: an authority, and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate's files."""

    cert: Path
    key: Path


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def authority(directory: Path, name: str) -> Certificate:
    """An authority that signs itself."""
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", made.key, "-out", made.cert, "-subj", f"/CN={name}", "-days", "2"),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
    )
    return made


def signed(directory: Path, name: str, by: Certificate) -> Certificate:
    """A certificate for localhost and 127.0.0.1."""
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    request, more = directory / f"{name}.csr", directory / f"{name}.ext"
    more.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", made.key, "-out", request, "-subj", f"/CN={name}"),
    )
    _openssl(
        *("x509", "-req", "-in", request, "-CA", by.cert, "-CAkey", by.key, "-CAcreateserial"),
        *("-out", made.cert, "-days", "2", "-extfile", more),
    )
    return made
