#!/bin/sh
# Makes the virtualenv in which another stack speaks the leases' protocol, .venv-leases at the
# root of the project. Writes nowhere else; a second run finds it complete and ends at once.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../../.venv-leases
# The last line of a run that went through, so that one cut short is taken up again.
stamp=$venv/complete
packages='grpcio>=1.60 grpcio-tools>=1.60'

[ "$(cat "$stamp" 2>/dev/null)" = "$packages" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086  # a list of words
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages
printf '%s\n' "$packages" >"$stamp"
