#!/usr/bin/env bash
# format.sh ROOT: every source is as clang-format writes it. Versions disagree, so one is the measure; 77 = not there.
set -euo pipefail
root=$1
version=14
. "${BASH_SOURCE[0]%/*}/sources.sh"
for program in clang-format-$version clang-format; do
  if command -v "$program" >/dev/null && [[ $("$program" --version) == *"version $version."* ]]; then
    cd "$root"
    sources . | xargs -r -d '\n' "$program" --dry-run -Werror
    echo "$(sources . | wc -l) files are formatted"
    exit 0
  fi
done
echo "skipped: clang-format $version is not installed"
exit 77
