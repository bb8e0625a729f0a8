"""TLS for the metrics' server, by Python's own `ssl`, as prometheus_client's server does it.

The certificate is read again when one of its files changes, so that a renewed one needs no restart.
A renewal that does not hold leaves the old certificate in force.
"""

import logging
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.plain import plain

_LOG: Final = logging.getLogger("sits.http")


class TlsError(OSError):
    """The certificate, its key or the clients' authority can't be used."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the server's certificate chain, its key, and who signs clients' certificates.

    With `client_ca` a client without a certificate signed by it gets no answer.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    def context(self) -> ssl.SSLContext:
        """A context made of what the files hold now; `TlsError` names the file that can't be used.

        TLS 1.2 at least, the cipher suites those of Python's `ssl`.
        """
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        trying = f"TLS certificate '{self.cert}' with key '{self.key}'"
        try:
            # an encrypted key would make OpenSSL ask for its password on the terminal
            made.load_cert_chain(self.cert, self.key, password=_no_password)
            if self.client_ca is not None:
                trying = f"clients' TLS authority '{self.client_ca}'"
                made.load_verify_locations(self.client_ca)
                made.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise TlsError(plain(f"could not load {trying}: {_why(error)}")) from None
        return made

    def stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """What changes when one of the files is replaced or rewritten."""
        paths = (self.cert, self.key, self.client_ca)
        return tuple(None if path is None else stamp_of(path) for path in paths)


class Tls:
    """Wraps accepted connections."""

    def __init__(self, files: TlsFiles) -> None:
        """`TlsError` if the files can't be used now."""
        self._files = files
        self._stamp = files.stamp()
        self._context = files.context()

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """`sock` with TLS, its handshake still to come; the accepting thread only."""
        stamp = self._files.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._files.context()
                _LOG.info("the metrics' TLS certificate was read again")
            except TlsError as error:
                _LOG.error("the old TLS certificate stays in use: %s", error)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of a file; None if it can't be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody can be asked for its password")


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM file of the kind").lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error).lower()
