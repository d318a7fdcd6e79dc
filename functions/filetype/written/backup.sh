#!/bin/bash
# Keeps the last seven nightly copies of a folder.
set -euo pipefail

source_dir=${1:?usage: backup.sh FOLDER TARGET}
target_dir=${2:?usage: backup.sh FOLDER TARGET}
keep=7

stamp=$(date +%Y-%m-%d)
archive="$target_dir/$(basename "$source_dir")-$stamp.tar.gz"

if [[ -e $archive ]]; then
    echo "$archive is there already" >&2
    exit 1
fi
mkdir -p "$target_dir"
tar -czf "$archive.part" -C "$(dirname "$source_dir")" "$(basename "$source_dir")"
mv "$archive.part" "$archive"

ls -1t "$target_dir"/*.tar.gz | tail -n +$((keep + 1)) | while read -r old; do
    echo "removing $old"
    rm -f -- "$old"
done
