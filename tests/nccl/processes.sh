#!/usr/bin/env bash
# processes.sh N PROGRAM [ARGUMENT...] : runs it as N processes of this machine, told of each other as torchrun would.
# What the first one says is shown, and of the others what they say where they fail. The exit status is the largest.
set -uo pipefail
count=$1
shift
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
export WORLD_SIZE=$count LOCAL_WORLD_SIZE=$count MEGATRON_STORE=$said/store
started=()
for ((process = 1; process < count; ++process)); do
  RANK=$process "$@" >"$said/$process" 2>&1 &
  started+=($!)
done
RANK=0 "$@"
worst=$?
for ((process = 1; process < count; ++process)); do
  wait "${started[process - 1]}"
  status=$?
  [[ $status -eq 0 || $status -eq 77 ]] || { echo "--- process $process ended with $status"; cat "$said/$process"; }
  [[ $status -gt $worst ]] && worst=$status
done
exit "$worst"
