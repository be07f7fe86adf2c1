#!/bin/sh
# Writes yesterday.log.gz: forty minutes of a sidecar in front of a backend that shares its time among
# calls, with a steady load and a burst every three minutes. docs/how-to/tune-the-limits.md explains the log.
#
#   sh examples/yesterday.sh target/release/tidegate target/release/tidegate-lab yesterday.log.gz
set -eu
tidegate=$1 lab=$2 out=$3
config=$(dirname "$0")/yesterday.toml
log=$(mktemp)

# Four calls run at full speed; more share these servers. Above sixteen it resets connections.
"$lab" backend --socket 127.0.0.1:12001 --http 127.0.0.1:0 \
  --delay 400ms --tail 0.4 --servers 4 --breaks-at 16 >/dev/null &
backend=$!
"$tidegate" serve --config "$config" 2>"$log" &
sidecar=$!
trap 'kill "$backend" "$sidecar" 2>/dev/null || true; rm -f "$log"' EXIT
sleep 2

"$lab" bench --target 127.0.0.1:12000 --rate 0.7 --seconds 2400 --function guest_list >/dev/null &
steady=$!
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13; do
  sleep 180
  "$lab" bench --target 127.0.0.1:12000 --storm 30 --seconds 60 --function guest_get_info >/dev/null
done
wait "$steady"
kill -TERM "$sidecar"
wait "$sidecar"
gzip -9 -n -c "$log" >"$out"
