#!/usr/bin/env bash
# compile_times.sh [--check] [BUILD_DIR]: how long each source took to compile when it last was, from ninja's log, slowest first.
# --check fails where a file is over its bar. A file that ccache knew costs nothing here: judge a build with
# CCACHE_DISABLE=1, on a quiet machine.
set -euo pipefail
check=0
if [[ ${1-} == --check ]]; then check=1 && shift; fi
build=${1:-$(dirname -- "$(readlink -f -- "$0")")/../build/release}
[[ -f $build/.ninja_log ]] || { echo "compile_times.sh: there is no $build/.ninja_log; build first" >&2; exit 2; }

awk -F '\t' '!/^#/ && $4 ~ /\.o$/ { took[$4] = $2 - $1 } END { for (o in took) print took[o] "\t" o }' "$build/.ninja_log" |
  while IFS=$'\t' read -r ms object; do [[ -e $build/$object ]] && printf '%s\t%s\n' "$ms" "$object"; done |
  sort -rn |
  awk -F '\t' -v check=$check '
    {
      cuda = $2 ~ /\.cu\.o$/; bar = cuda ? 90 : 30; ++files; total += $1
      name = $2; sub(/CMakeFiles\/[^\/]*\.dir\//, "", name); sub(/\.o$/, "", name)
      over = $1 > 1000 * bar
      if (over) ++slow
      if (files <= 10 || over) printf "%7.1f s  %s%s\n", $1 / 1000, name, over ? "   over its bar of " bar " s" : ""
    }
    END {
      printf "%7.1f s  in all, %d files; %d over their bar (30 s, CUDA 90 s)\n", total / 1000, files, slow
      exit check && slow > 0
    }'
