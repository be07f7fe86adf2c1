#!/bin/sh
# Installs the clients of HTTP that are no packages of Python: curl, wget, Node.js with npm, Java with its compiler, Perl with LWP, and
# Ruby, from the packages of Debian and Ubuntu. A second run finds them and exits at once.
set -eu

missing=
command -v curl >/dev/null || missing="$missing curl"
command -v wget >/dev/null || missing="$missing wget"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
command -v javac >/dev/null || missing="$missing default-jdk-headless"
perl -MLWP::UserAgent -MJSON::PP -e 1 2>/dev/null || missing="$missing libwww-perl"
command -v ruby >/dev/null || missing="$missing ruby"
[ -n "$missing" ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing$missing"
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
