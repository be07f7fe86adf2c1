#!/bin/sh
# Builds the packages once more, from a clone of the same commit in another folder, and compares every file with
# what `make packages` built. `make packages-twice` runs both.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
other=$(mktemp -d)
trap 'rm -rf "$other"' EXIT
if ! git -C "$root" diff --quiet HEAD; then
  echo "twice.sh: there are changes without a commit, which the clone does not have: commit them first" >&2
  exit 1
fi
git clone --quiet "$root" "$other/another-folder/tidegate"
cd "$other/another-folder/tidegate"
python3 packaging/build.py
python3 packaging/pack.py
cd target/packages/dist
sha256sum --check "$root/target/packages/dist/SHA256SUMS"
