#!/bin/sh
# Makes the virtualenv with real clients of RPC services, .venv-rpc at the root of the project. It writes nowhere else. A second
# run finds it complete and exits at once. It is not .venv-peers, whose PyJWT is older than that of mcp. Clients for Node are in
# .venv-rpc/node; they need npm, and no script of a package is run.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$here/../../../.venv-rpc
stamp=$venv/complete
packages='XenAPI==26.21.1 proxmoxer==2.3.0 requests==2.34.2 openai==3.57.0 mcp==2.3.0 web3==8.0.0'
of_node='openai@7.59.0'

[ "$(cat "$stamp" 2>/dev/null)" = "$packages $of_node" ] && exit 0
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# shellcheck disable=SC2086  # a list of words
"$venv/bin/pip" install --quiet --disable-pip-version-check $packages
# shellcheck disable=SC2086  # a list of words
npm install --prefix "$venv/node" --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error $of_node
printf '%s\n' "$packages $of_node" >"$stamp"
