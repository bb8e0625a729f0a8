"""How long a group's own quota has stopped it, read often."""

from controller.limits.cgroup import CgroupError, Group
from controller.limits.cpu import parse_throttling
from controller.limits.kept_open import KeptOpen


class ThrottlingReader:
    """Reads one group's cpu.stat."""

    def __init__(self, group: Group) -> None:
        self._version = group.version
        self._file = group.directory / "cpu.stat"
        self._files = KeptOpen()

    def throttled_ns(self) -> int:
        """Since the group was made; `CgroupError` if it can't be read."""
        try:
            return parse_throttling(self._version, self._text()).throttled_ns
        except OSError as error:
            raise CgroupError(f"could not read '{self._file}': {error.strerror}") from None
        except ValueError as error:
            raise CgroupError(f"could not read '{self._file}': {error}") from None

    def close(self) -> None:
        """Close what is open."""
        self._files.close()

    def _text(self) -> str:
        try:
            return self._files.read(self._file)
        except OSError:
            # the group may be gone and another made in its place
            self._files.close()
            return self._files.read(self._file)
