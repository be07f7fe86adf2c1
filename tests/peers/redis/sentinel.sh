#!/bin/sh
# Runs one sentinel of Redis on loopback, in the foreground, as this same process.
#   sentinel.sh FOLDER PORT PRIMARY_PORT [LINE...]
# It watches the primary as "mymaster", with a quorum of 2. LINE is a whole line of its file,
# which a sentinel rewrites.
set -eu
folder=$1 port=$2 primary=$3
shift 3
mkdir -p "$folder"
{
	printf '%s\n' "port $port" 'bind 127.0.0.1' "dir $folder" 'daemonize no'
	printf '%s\n' "sentinel monitor mymaster 127.0.0.1 $primary 2"
	# Far shorter than anybody would set: a test waits for it.
	printf '%s\n' 'sentinel down-after-milliseconds mymaster 500'
	printf '%s\n' 'sentinel failover-timeout mymaster 3000'
	for line; do printf '%s\n' "$line"; done
} >"$folder/sentinel.conf"
bound=
command -v setpriv >/dev/null && bound='setpriv --pdeathsig KILL'
exec $bound "${REDIS:-redis-server}" "$folder/sentinel.conf" --sentinel
