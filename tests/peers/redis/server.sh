#!/bin/sh
# Runs one Redis on loopback, in the foreground, as this same process.
#   server.sh FOLDER PORT [FLAG VALUE...]
# It keeps nothing on disk unless a flag says so. REDIS=valkey-server runs Valkey instead.
set -eu
folder=$1 port=$2
shift 2
mkdir -p "$folder"
bound=
command -v setpriv >/dev/null && bound='setpriv --pdeathsig KILL'
exec $bound "${REDIS:-redis-server}" --bind 127.0.0.1 --port "$port" --dir "$folder" \
	--daemonize no --save '' --appendonly no "$@"
