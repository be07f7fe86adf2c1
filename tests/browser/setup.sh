#!/bin/sh
# Installs what the tests of the page need: Chromium and Node.js from the packages of Debian and
# Ubuntu, and two packages of npm in .browser at the root of the project. A second run finds all
# of it and exits at once.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=$here/../../.browser
# A complete run writes this file last, so a run that was cut short starts again.
stamp=$folder/complete

# playwright-core drives the installed Chromium, and brings none. axe-core looks for what people
# with a screen reader, or with little sight, cannot use.
packages='axe-core@4.14.1 playwright-core@1.65.1'

missing=
command -v chromium >/dev/null || missing="$missing chromium"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
if [ -n "$missing" ]; then
	sudo=
	[ "$(id -u)" = 0 ] || sudo=sudo
	echo "installing$missing"
	$sudo apt-get update -qq
	# shellcheck disable=SC2086  # a list of words
	DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

[ "$(cat "$stamp" 2>/dev/null)" = "$packages" ] && exit 0
mkdir -p "$folder"
# shellcheck disable=SC2086  # a list of words
npm install --prefix "$folder" --silent --no-audit --no-fund --ignore-scripts --save-exact $packages
printf '%s\n' "$packages" >"$stamp"
