#!/bin/sh
# Installs missing stores for the tests of leases and quotas: etcd, ZooKeeper and Redis,
# from the packages of Debian and Ubuntu. It leaves none of them running.
set -eu
missing=
command -v etcd >/dev/null || missing="$missing etcd-server"
command -v etcdctl >/dev/null || missing="$missing etcd-client"
[ -e /usr/share/java/zookeeper.jar ] || missing="$missing zookeeper"
command -v java >/dev/null || missing="$missing default-jre-headless"
command -v redis-server >/dev/null || missing="$missing redis-server"
[ -z "$missing" ] && exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# Without this, packages start their servers when they are installed.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
	$sudo chmod +x "$policy"
	trap '$sudo rm -f "$policy"' EXIT
fi
echo "installing$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
