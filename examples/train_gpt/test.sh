#!/bin/bash
# Trains, is stopped by a signal, and goes on: the last loss is that of a run that was not stopped.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
last_loss() { grep -o 'iteration *200/.*' "$1" | grep -o 'lm loss: [^|]*'; }

"$program" "$folder/whole" >"$folder/whole.log" 2>&1
"$program" "$folder/parts" >"$folder/first.log" 2>&1 &
pid=$!
until grep -q 'iteration *50/' "$folder/first.log"; do
  kill -0 $pid 2>/dev/null || break
  sleep 0.02
done
kill -TERM $pid 2>/dev/null || true
wait $pid || [ $? -eq 1 ]  # 1: stopped before its last iteration
"$program" "$folder/parts" >"$folder/second.log" 2>&1
grep -q 'validation loss at iteration 200' "$folder/whole.log"
[ "$(last_loss "$folder/whole.log")" = "$(last_loss "$folder/second.log")" ] && last_loss "$folder/whole.log"
