#!/usr/bin/env bash
# Put sits below a directory, as it is on a machine where it is installed: a virtual environment
# of its own in PREFIX, and what systemd reads.
#
#     deploy/stage.sh ROOT PREFIX VENDOR
#
# ROOT is empty or a directory that stands for / (DESTDIR). VENDOR is where systemd's files go:
# /etc for an administrator's own, /usr/lib for a package's. Takes the wheels of build/wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$1 prefix=$2 vendor=$3
at=$root$prefix
case $vendor in
  /etc) units=$root/etc/systemd/system ;;
  *) units=$root$vendor/systemd/system ;;
esac
python=$(readlink -f "${PYTHON:-/usr/bin/python3}")

# Made anew as a whole: what an earlier version had and this one has not must not stay.
rm -rf "$at"
"$python" -m venv --without-pip "$at"
.venv/bin/python -m pip --python "$at/bin/python" --quiet --disable-pip-version-check \
  install --no-index --find-links build/wheels --no-compile sits
# The service may not write there, and would compile all of it with each start.
"$python" -m compileall -q --invalidation-mode unchecked-hash -s "$root" "$at"/lib/python3.*/site-packages
# It is to run where it will lie, with the machine's own Python, not where it was made.
rm -f "$at"/bin/[Aa]ctivate* "$at/bin/python3."*
ln -sfn /usr/bin/python3 "$at/bin/python3"
ln -sfn python3 "$at/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$at/pyvenv.cfg"
for script in "$at"/bin/sits*; do
  sed -i "1s|.*|#!$prefix/bin/python|" "$script"
done

mkdir -p "$at/share/doc"
install -m 644 docs/*.md "$at/share/doc/"
install -m 644 systemd/bcc.conf systemd/containers.conf systemd/network.conf systemd/policy.toml "$at/share/"
install -D -m 644 systemd/sits.sysusers "$root${vendor}/sysusers.d/sits.conf"
install -D -m 644 systemd/sits.tmpfiles "$root${vendor}/tmpfiles.d/sits.conf"
mkdir -p "$units"
sed "s|/opt/sits|$prefix|g" systemd/sitsd.service >"$units/sitsd.service"
chmod 644 "$units/sitsd.service"
