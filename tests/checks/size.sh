#!/usr/bin/env bash
# size.sh ROOT: no source file is longer than 600 lines; one that is usually holds two ideas.
set -euo pipefail
cd "$1"
. "${BASH_SOURCE[0]%/*}/sources.sh"
sources . | xargs -r -d '\n' awk '
  FNR == 601 { print FILENAME " is longer than 600 lines: split it"; ++faults }
  END { exit faults > 0 }'
