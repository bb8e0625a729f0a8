#!/usr/bin/env bash
# The README's first command, typed on a machine that has nothing: a Debian 12 of 100 packages, made
# for it and removed after it, with a fresh clone. Only the kernel is this machine's.
#
#     tests/walk/bare.sh [COMMAND]     # make demo DEMO_OPTIONS=--quick
#
# Needs root, mmdebstrap and, for what the command installs, the package sources of this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
command=${1:-make demo DEMO_OPTIONS=--quick}
into=$PWD/build/walk
bare=$(mktemp -d)
trap 'rm -rf --one-file-system "$bare"' EXIT
mkdir -p "$into"

mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,make,git bookworm "$bare"
git clone --quiet . "$bare/root/sits"

# Mounts are in a namespace of their own, and go with it.
export bare command
unshare --mount --propagation=slave bash -euo pipefail -c '
  # what changes how mounts propagate wants / to be one
  mount --bind "$bare" "$bare"
  mount --rbind /dev "$bare/dev"
  mount --rbind /sys "$bare/sys"
  mount -t proc proc "$bare/proc"
  mount -t tmpfs tmpfs "$bare/run"
  # how this machine reaches the package sources
  for each in /etc/resolv.conf /etc/pip.conf /etc/ssl /etc/apt /usr/local/share/ca-certificates; do
    [ -e "$each" ] || continue
    [ -d "$each" ] && mkdir -p "$bare$each" || touch "$bare$each"
    mount --bind "$each" "$bare$each"
  done
  exec chroot "$bare" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb COLUMNS=80 \
    $(env | grep -E "^(PIP|https?|no)_" || true) bash -c "cd ~/sits && $command"
' 2>&1 | tee "$into/bare.txt"
