#!/bin/sh
# Builds, installs the peers where they are missing, runs the comparison.
set -eu
cd "$(dirname "$0")/.."
SUDO=$(command -v sudo || true)
missing=
command -v haproxy >/dev/null || missing="$missing haproxy"
command -v nginx >/dev/null || missing="$missing nginx-light"
[ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || missing="$missing libnginx-mod-stream"
if [ -n "$missing" ]; then
	$SUDO apt-get update -qq
	# shellcheck disable=SC2086
	$SUDO apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
cargo build --release --quiet
exec python3 benches/compare.py "$@"
