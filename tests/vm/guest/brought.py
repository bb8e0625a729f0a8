"""bcc and the kernel's headers, where `--bcc` brought them along."""

import os
from pathlib import Path
from typing import Final

BCC: Final = Path("/payload/bcc")
HEADERS: Final = BCC / "headers"
LIBRARIES: Final = BCC / "usr/x86_64-linux-gnu"
PACKAGES: Final = BCC / "usr/python3/dist-packages"
MISSING: Final = "the payload has no bcc with headers of this kernel (--bcc, kernel 6.1)"


def is_there() -> bool:
    """Whether there is bcc, and headers of the kernel that runs."""
    release = HEADERS / "include/generated/utsrelease.h"
    return release.is_file() and f'"{os.uname().release}"' in release.read_text()
