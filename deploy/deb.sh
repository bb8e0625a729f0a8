#!/usr/bin/env bash
# Make build/sits_VERSION_ARCH.deb: `deploy/deb.sh [VERSION]`, by default setup.cfg's.
#
# One package for every Debian and Ubuntu with Python 3.11 or newer: what is in it is Python, and
# one module in C by the stable ABI (psutil's), which any of them loads.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-$(sed -n 's/^version = //p' setup.cfg)}
arch=$(dpkg --print-architecture)
stage=build/deb
rm -rf $stage
mkdir -p $stage/DEBIAN
deploy/stage.sh "$PWD/$stage" /opt/sits /usr/lib

at=$stage/opt/sits
if foreign=$(find $at -name '*.so' ! -name '*.abi3.so') && [ -n "$foreign" ]; then
  echo "error: made for one version of Python only: $foreign" >&2
  exit 1
fi
made=$(basename "$(echo $at/lib/python3.*)")
for minor in 11 12 13 14; do
  [ -e $at/lib/python3.$minor ] || ln -s "$made" $at/lib/python3.$minor
done
install -D -m 644 systemd/policy.toml $stage/etc/sits/policy.toml
mkdir -p $stage/usr/bin $stage/usr/share/doc/sits
ln -s /opt/sits/bin/sitsctl $stage/usr/bin/sitsctl
install -m 644 LICENSE $stage/usr/share/doc/sits/copyright
deploy/shell.sh "$PWD/$stage"
install -m 755 deploy/debian/{postinst,prerm,postrm} $stage/DEBIAN/
echo /etc/sits/policy.toml >$stage/DEBIAN/conffiles
cat >$stage/DEBIAN/control <<CONTROL
Package: sits
Version: $version
Architecture: $arch
Maintainer: sits <sits@localhost>
Depends: python3 (>= 3.11), python3 (<< 3.15), libbpf1, systemd
Section: admin
Priority: optional
Installed-Size: $(du -ks --exclude=DEBIAN $stage | cut -f1)
Description: node agent for LLM inference
 Measures from the kernel, with eBPF, what the users of streaming inference
 engines feel, says why a stream is slow, and, where its policy says so,
 retunes engines and limits their neighbours, with undo.
CONTROL
find $stage -type d -exec chmod 755 {} +
dpkg-deb --root-owner-group -Zxz -z1 --build $stage build/sits_"${version}"_"$arch".deb
rm -rf $stage
