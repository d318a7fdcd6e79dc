#!/bin/sh
. /etc/default/greeter

start() {
    if [ -f "$PIDFILE" ] && kill -0 "$(cat "$PIDFILE")" 2>/dev/null; then
        echo "already running"
        return 0
    fi
    nohup "$BINARY" --port "${PORT:-9000}" >>"$LOGFILE" 2>&1 &
    echo $! >"$PIDFILE"
}

stop() {
    [ -f "$PIDFILE" ] || return 0
    kill "$(cat "$PIDFILE")" && rm -f "$PIDFILE"
}

case "$1" in
    start) start ;;
    stop) stop ;;
    restart) stop; sleep 1; start ;;
    *) echo "usage: $0 {start|stop|restart}" >&2; exit 2 ;;
esac
