import pytest

from tests.vm.rig.command import RigError
from tests.vm.rig.kernel import META_PACKAGE, Choice, choose

ONE_PACKAGE = {
    META_PACKAGE: {"Depends": "linux-image-5.10.0-32-cloud-amd64 (= 5.10.223-1)"},
    "linux-image-5.10.0-32-cloud-amd64": {"Depends": "kmod, linux-base (>= 4.3~), initramfs-tools"},
}
SPLIT = {
    META_PACKAGE: {
        "Depends": "linux-base-cloud-amd64 (= 7.3), linux-image-7.3+deb13-cloud-amd64 (= 7.3)"
    },
    "linux-image-7.3+deb13-cloud-amd64": {
        "Depends": "dracut | initramfs-tools, linux-base-7.3+deb13-cloud-amd64 (= 7.3),"
        " linux-modules-7.3+deb13-cloud-amd64 (= 7.3)"
    },
    "linux-base-7.3+deb13-cloud-amd64": {"Package": "linux-base-7.3+deb13-cloud-amd64"},
    "linux-modules-7.3+deb13-cloud-amd64": {
        "Depends": "kmod, linux-base-7.3+deb13-cloud-amd64 (= 7.3)"
    },
}


def test_a_kernel_in_one_package_is_that_package() -> None:
    release = "5.10.0-32-cloud-amd64"
    assert choose(ONE_PACKAGE.__getitem__) == Choice(release, (f"linux-image-{release}",))


def test_a_kernel_in_several_packages_is_all_of_them_once() -> None:
    release = "7.3+deb13-cloud-amd64"
    parts = tuple(f"linux-{part}-{release}" for part in ("image", "base", "modules"))
    assert choose(SPLIT.__getitem__) == Choice(release, parts)


def test_a_meta_package_without_an_image_is_an_error() -> None:
    with pytest.raises(RigError, match="no kernel image"):
        choose({META_PACKAGE: {"Depends": "linux-base"}}.__getitem__)
