#!/usr/bin/env bash
# Put manual pages of every command, and completion for three shells, where a package has them:
# `deploy/shell.sh ROOT`.
set -euo pipefail
cd "$(dirname "$0")/.."
share=$1/usr/share
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

.venv/bin/python docs/man.py "$pages"
for page in "$pages"/*; do
  gzip -9n "$page"
  install -D -m 644 "$page.gz" "$share/man/man${page##*.}/${page##*/}.gz"
done

complete() {
  _SITSCTL_COMPLETE=${1}_source .venv/bin/sitsctl >"$pages/$1"
  install -D -m 644 "$pages/$1" "$share/$2"
}
complete bash bash-completion/completions/sitsctl
complete zsh zsh/vendor-completions/_sitsctl
complete fish fish/vendor_completions.d/sitsctl.fish
