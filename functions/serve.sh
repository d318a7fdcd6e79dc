#!/bin/sh
# Serve, deploy the ready-made functions, call each once with a real sample, and keep serving.
# Ctrl-C reaches the server too, which finishes what it accepted and stops its replicas.
set -eu
cd "$(dirname "$0")/.."
FN_DATA="${FN_DATA:-$PWD/.fngate}"
FN_PORT="${FN_PORT:-8080}"
FN_URL="http://127.0.0.1:$FN_PORT"
export FN_DATA FN_PORT FN_URL

fnctl serve &
server=$!
trap 'trap - INT TERM; kill -INT "$server" 2>/dev/null || true; wait "$server"; exit' INT TERM

until fnctl ls >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.1
done
show() {
    fnctl deploy "functions/$1"
    fnctl invoke "$1" -i "$2"
    echo
}
# Side by side, for a deploy mostly waits for its trial; what they say is shown one after the other.
said=$(mktemp -d)
show filetype data=@functions/filetype/written/ring.c >"$said/filetype" 2>&1 &
filetype=$!
show commands audio=@functions/commands/yes.wav >"$said/commands" 2>&1 &
commands=$!
failed=
show digits image=@functions/digits/seven.png || failed=1
wait "$filetype" || failed=1
wait "$commands" || failed=1
cat "$said/filetype" "$said/commands"
rm -r "$said"
if [ "$failed" ]; then
    kill -INT "$server"
    wait "$server"
    exit 1
fi
echo "Serving on $FN_URL until Ctrl-C. In another terminal:"
echo "  curl $FN_URL/fn/digits -H 'Content-Type: image/png' --data-binary @functions/digits/two.png"
echo "  curl $FN_URL/fn/filetype -H 'Content-Type: application/octet-stream' --data-binary @README.md"
echo "  curl $FN_URL/fn/commands -H 'Content-Type: audio/wav' --data-binary @functions/commands/left.wav"
echo "Dashboard: $FN_URL/ui/ (fnctl ui --open opens it with its key)"
wait "$server"
