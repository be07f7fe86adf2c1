#!/bin/sh
# Runs one server of ZooKeeper on loopback, in the foreground, as this same process.
#   server.sh ID FOLDER CLIENT_PORT [SERVER...]
# SERVER is host:peer-port:election-port;host:client-port of every server, in the order of their
# ids, from 1. A single server needs none. With ZOOKEEPER_FSYNC=yes it confirms nothing before
# it is on disk. With ZOOKEEPER_KEYS and ZOOKEEPER_TRUST, files in PEM, a single server speaks TLS
# alone, and wants certificates of its clients.
set -eu
id=$1 folder=$2 port=$3
shift 3
mkdir -p "$folder/data"
printf '%s\n' "$id" >"$folder/data/myid"
{
	printf 'dataDir=%s/data\n' "$folder"
	# Sessions of 400 ms and more; a follower without messages for 2 s leaves.
	printf '%s\n' tickTime=200 initLimit=50 syncLimit=10 maxSessionTimeout=60000
	printf '%s\n' maxClientCnxns=0 admin.enableServer=false
	if [ -n "${ZOOKEEPER_KEYS:-}" ]; then
		printf 'secureClientPort=%s\nsecureClientPortAddress=127.0.0.1\n' "$port"
		printf 'serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n'
		printf 'ssl.keyStore.location=%s\nssl.trustStore.location=%s\n' "$ZOOKEEPER_KEYS" "$ZOOKEEPER_TRUST"
		printf 'ssl.clientAuth=need\n'
	elif [ $# = 0 ]; then
		printf 'clientPort=%s\nclientPortAddress=127.0.0.1\n' "$port"
	else
		number=0
		for server; do
			number=$((number + 1))
			printf 'server.%s=%s\n' "$number" "$server"
		done
	fi
} >"$folder/zoo.cfg"
bound=
command -v setpriv >/dev/null && bound='setpriv --pdeathsig KILL'
# The jar names the others that it needs. Usually no fsync: a test loses no power.
exec $bound java -Xms32m -Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
	-Djava.net.preferIPv4Stack=true -Dzookeeper.forceSync="${ZOOKEEPER_FSYNC:-no}" \
	-Dzookeeper.4lw.commands.whitelist=srvr,wchs \
	-Dzookeeper.jmx.log4j.disable=true -Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
	-cp /usr/share/java/zookeeper.jar:/usr/share/java/netty-codec.jar:/usr/share/java/slf4j-simple.jar \
	org.apache.zookeeper.server.quorum.QuorumPeerMain "$folder/zoo.cfg"
