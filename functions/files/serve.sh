#!/bin/sh
# Serve public/ with nginx in the foreground: serve.sh PORT. The bundle is read-only, so all that
# nginx writes is below TMPDIR.
set -eu
cd "$(dirname "$0")"
PATH="$PATH:/usr/sbin:/usr/local/sbin"
command -v nginx >/dev/null || { echo "nginx is not installed: apt-get install nginx" >&2; exit 1; }
own="${TMPDIR:-/tmp}"
mkdir -p "$own/temporary"
ln -sfn "$PWD/public" "$own/public"
cp nginx.conf "$own/nginx.conf"
echo "listen 127.0.0.1:$1;" >"$own/listen.conf"
# Only root has a choice of users, and in a namespace or without capabilities it has none either.
user=
[ "$(id -u)" -ne 0 ] || user="user root;"
exec nginx -e stderr -p "$own/" -c nginx.conf -g "daemon off; $user"
