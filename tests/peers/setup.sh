#!/bin/sh
# Makes the virtualenv that the real peers run in, .venv-peers at the root of the
# project. Writes nowhere else; a second run finds it complete and ends at once.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../.venv-peers
# The last line of a run that went through, so that one cut short is taken up again.
stamp=$venv/complete

# What setup.sh installs is the stamp's text: a changed list is installed anew.
# jinja2 and waitress are needs that zvmsdk does not declare; with PyJWT 2 the tokens of
# 1.6.3 do not work (sdkwsgi/handlers/tokens.py decodes a str). schemathesis drives the API of
# the admin address by its OpenAPI document. grpcio speaks the capacity leases' wire.
packages='zVMCloudConnector==1.6.3 jinja2 PyJWT<2 waitress schemathesis==4.32.5 grpcio==1.85.1 grpcio-tools==1.85.1'

[ "$(cat "$stamp" 2>/dev/null)" = "$packages" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086  # a list of words
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages
printf '%s\n' "$packages" >"$stamp"
