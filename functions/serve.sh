#!/bin/sh
# Start a server, deploy the ready-made functions, call each once with a sample, and keep serving.
# Ctrl-C also stops the server, which finishes accepted requests and stops its replicas.
set -eu
cd "$(dirname "$0")/.."
FN_DATA="${FN_DATA:-$PWD/.fngate}"
case "$FN_DATA" in /*) ;; *) FN_DATA="$PWD/$FN_DATA" ;; esac
FN_PORT="${FN_PORT:-8080}"
FN_URL="http://127.0.0.1:$FN_PORT"
export FN_DATA FN_PORT FN_URL

# A dashboard that was never built is built beside the server, which serves it once it is there. The
# server reads one that is there when it starts, so that is brought up to date before.
ui=
python="$(dirname "$(command -v fnctl)")/python"
if [ -f admin/ui/static/index.html ]; then
    "$python" -m admin.ui.build --optional
else
    nice -n 19 "$python" -m admin.ui.build --optional &
    ui=$!
fi
fnctl serve &
server=$!
stop() {
    trap - INT TERM
    [ -z "$ui" ] || kill "$ui" 2>/dev/null || true
    kill -INT "$server" 2>/dev/null || true
    wait "$server"
}
trap 'stop; exit' INT TERM

until fnctl ls >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || { stop; exit 1; }
    sleep 0.1
done
show() {
    fnctl deploy "functions/$1"
    fnctl invoke "$1" -i "$2"
    echo
}
# A package comes from an index, which may be away: then the others are there without this one.
stream() {
    fnctl deploy functions/prose --trust && fnctl invoke prose && echo && return
    echo "prose is not deployed; later: fnctl deploy functions/prose --trust"
    return 1
}
# In parallel, because a deploy mostly waits for its trial. Their output is shown in sequence.
said=$(mktemp -d)
show filetype data=@functions/filetype/written/ring.c >"$said/filetype" 2>&1 &
filetype=$!
show commands audio=@functions/commands/yes.wav >"$said/commands" 2>&1 &
commands=$!
stream >"$said/prose" 2>&1 &
prose=$!
failed=
show digits image=@functions/digits/seven.png || failed=1
wait "$filetype" || failed=1
wait "$commands" || failed=1
no_prose=
wait "$prose" || no_prose=1
cat "$said/filetype" "$said/commands" "$said/prose"
rm -r "$said"
if [ "$failed" ]; then
    stop
    exit 1
fi
# Print a word quoted for a shell, so that the printed commands work in any folder.
quoted() {
    case "$1" in
    *[!A-Za-z0-9_./:@-]*) printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf %s "$1" ;;
    esac
}
call() {
    echo "  curl $FN_URL/fn/$1 -H 'Content-Type: $2' --data-binary $(quoted "@$PWD/$3")"
}
echo "Serving on $FN_URL until Ctrl-C. In another terminal:"
call digits image/png functions/digits/two.png
call filetype application/octet-stream README.md
call commands audio/wav functions/commands/left.wav
[ "$no_prose" ] || echo "  curl -N $FN_URL/fn/prose -F prompt='A cold function '"
echo "For fnctl there, and for the dashboard at $FN_URL/ui/ with its key:"
echo "  export PATH=$(quoted "$(dirname "$(command -v fnctl)")"):\"\$PATH\" FN_DATA=$(quoted "$FN_DATA") FN_URL=$FN_URL"
echo "  $(quoted "$(command -v fnctl)") ui --open --url $FN_URL --data $(quoted "$FN_DATA")"
wait "$server"
