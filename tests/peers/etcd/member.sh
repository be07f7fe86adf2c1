#!/bin/sh
# Runs one member of etcd on loopback, in the foreground, as this same process.
#   member.sh NAME FOLDER CLIENT_PORT PEER_PORT CLUSTER [FLAG...]
# CLUSTER is NAME=http://127.0.0.1:PEER_PORT of every member, separated by commas. A later flag
# replaces one of ours, such as --listen-client-urls=https://...
set -eu
name=$1 folder=$2 client=http://127.0.0.1:$3 peer=http://127.0.0.1:$4 cluster=$5
shift 5
# etcd also reads every flag from a variable: keep the caller's variables away from it.
for variable in $(env | sed -n 's/^\(ETCD[A-Z_]*\)=.*/\1/p'); do unset "$variable"; done
mkdir -p "$folder"
chmod 700 "$folder"
# It exits with the process that started it, even if that is killed.
bound=
command -v setpriv >/dev/null && bound='setpriv --pdeathsig KILL'
exec $bound etcd --name="$name" --data-dir="$folder/data" \
	--listen-client-urls="$client" --advertise-client-urls="$client" \
	--listen-peer-urls="$peer" --initial-advertise-peer-urls="$peer" \
	--initial-cluster="$cluster" --initial-cluster-state=new \
	--logger=zap --log-level=info "$@"
