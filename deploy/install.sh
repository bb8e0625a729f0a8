#!/usr/bin/env bash
# `make install` and `make uninstall`, as root:
#
#     deploy/install.sh install|uninstall ROOT PREFIX
#
# ENABLE=1 enables and starts the service, PURGE=1 removes policy and journal with the rest. With
# a ROOT (DESTDIR) only files are written or removed; the machine that runs this is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
what=$1 root=$2 prefix=$3
systemd() { [ -n "$root" ] || [ ! -d /run/systemd/system ] || "$@"; }

if [ "$what" = install ]; then
  running=
  if [ -z "$root" ] && systemctl --quiet is-active sitsd.service 2>/dev/null; then
    running=1
    systemctl stop sitsd.service
  fi
  deploy/stage.sh "$root" "$prefix" /etc
  # What is configured is kept; the new default lies in PREFIX/share.
  [ -e "$root/etc/sits/policy.toml" ] || install -D -m 644 systemd/policy.toml "$root/etc/sits/policy.toml"
  mkdir -p "$root/usr/local/bin"
  ln -sfn "$prefix/bin/sitsctl" "$root/usr/local/bin/sitsctl"
  [ -n "$root" ] || systemd-sysusers /etc/sysusers.d/sits.conf
  systemd systemd-tmpfiles --create /etc/tmpfiles.d/sits.conf
  systemd systemctl daemon-reload
  [ -z "$running" ] || systemctl start sitsd.service
  [ "${ENABLE:-}" != 1 ] || systemd systemctl enable --now sitsd.service
else
  systemd systemctl disable --now sitsd.service || true
  # The pins outlive the agent; nobody would read them any more.
  [ -n "$root" ] || [ ! -x "$prefix/bin/sitsd" ] || "$prefix/bin/sitsd" --unload || true
  rm -rf "$root$prefix"
  rm -f "$root/etc/systemd/system/sitsd.service" "$root/etc/sysusers.d/sits.conf" \
    "$root/etc/tmpfiles.d/sits.conf" "$root/usr/local/bin/sitsctl"
  systemd systemctl daemon-reload
  if [ "${PURGE:-}" = 1 ]; then
    rm -rf "$root/etc/sits" "$root/var/lib/sits" "$root/etc/systemd/system/sitsd.service.d"
  fi
fi
