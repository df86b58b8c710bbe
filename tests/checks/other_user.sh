#!/usr/bin/env bash
# A clone that somebody else has built can be run: other_user.sh SOURCE_ROOT. Needs root, to be another user for once.
set -euo pipefail
[[ $EUID -eq 0 ]] && command -v setpriv >/dev/null && command -v git >/dev/null || exit 77

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
clone=$folder/clone
mkdir -p "$clone/build/release/bin" "$clone/src" "$clone/cmake"
cp "$1/megatron" "$clone/"
touch "$clone/CMakeLists.txt"
printf '#!/bin/sh\necho "ran $*"\n' >"$clone/build/release/bin/megatron"
chmod 755 "$clone/build/release/bin/megatron"
git -C "$clone" init -q
git -C "$clone" -c user.name=x -c user.email=x@example.org commit -q --allow-empty -m x

fail() {
  echo "$*"
  exit 1
}
# as_other ARGUMENTS...: the script as nobody; its words on both channels in $said
as_other() {
  said=$(HOME=/nonexistent setpriv --reuid 65534 --regid 65534 --clear-groups "$clone/megatron" "$@" 2>&1) || true
}

# The build is that of this commit: the other user sees the same commit, and nothing is built.
gpu=0
[[ -e /dev/nvidia0 ]] && gpu=1
printf 'cuda=%s,gpu=%s %s' "${MEGATRON_CUDA-auto}" "$gpu" "$(git -C "$clone" rev-parse HEAD)" >"$clone/build/release/.built"
as_other --version
[[ $said == "ran --version" ]] || fail "a build that is up to date: $said"

# A source is newer, and only its owner may build it.
sleep 1
touch "$clone/src/newer.cpp"
as_other --version
[[ $said == *"is not yours to write"*$'\n'"ran --version" ]] || fail "a build that is older: $said"

rm "$clone/build/release/bin/megatron"
as_other --version
[[ $said == *"there is no build yet"* ]] || fail "no build: $said"
