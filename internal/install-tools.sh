#!/bin/sh
# Installs what the tests need and this machine lacks, from Debian's packages.
set -eu
missing=
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
# With a font, or the page's picture has boxes for letters.
command -v chromium >/dev/null 2>&1 || missing="$missing chromium fonts-dejavu-core"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
	echo "please install:$missing" >&2
	exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# No service: the tests start servers of their own.
echo "installing:$missing"
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing
