#!/usr/bin/env bash
# browser.sh SCRIPTED_SERVER TOKENIZER CHROMIUM [SCREENSHOT.png]: the page at / asks and shows the answer, its tokens and
# the engine's figures, in a browser without network. 77: there is no browser.
set -euo pipefail
[[ -n ${3-} && -x $3 ]] || { echo "there is no Chromium"; exit 77; }
folder=$(mktemp -d)
mkfifo "$folder/input"
"$1" "$2" "$(printf 'Well met. This answer has\ntwo lines, and some 世界 in it.')" <"$folder/input" >"$folder/address" &
server=$!
exec 3>"$folder/input"
end() {
  exec 3>&-
  wait "$server" || true
  rm -rf "$folder"
}
trap end EXIT
for _ in $(seq 600); do [[ -s $folder/address ]] && break; sleep 0.1; done
address=$(<"$folder/address")
chromium=("$3" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars
  --user-data-dir="$folder/profile" --host-resolver-rules='MAP * ~NOTFOUND , EXCLUDE 127.0.0.1')

# missing: what the page at $folder/page.html does not show, one line; nothing where it is whole.
missing() {
  sed 's/<[^>]*>//g' "$folder/page.html" >"$folder/text"
  for text in 'Well met. This answer has' 'two lines, and some 世界 in it.' ' tokens/s' 'Regenerate' 'scripted · 4096'; do
    grep -q -- "$text" "$folder/text" || { echo "the text '$text'"; return; }
  done
  grep -q 'class="token"' "$folder/page.html" || { echo "tokens"; return; }
  grep -Eq 'id="m-done">[1-9]' "$folder/page.html" || echo "the count of answers"
}

# The browser's clock does not wait for an answer that streams, so a busy machine needs more of its time.
for milliseconds in 3000 6000 20000 60000; do
  "${chromium[@]}" --virtual-time-budget=$milliseconds --dump-dom "$address/#ask=Hello" >"$folder/page.html" 2>"$folder/log"
  lacks=$(missing)
  [[ -z $lacks ]] && break
done
[[ -z $lacks ]] || { echo "the page does not show $lacks"; cat "$folder/text"; exit 1; }
chromium+=(--virtual-time-budget=6000)
if [[ -n ${4-} ]]; then
  "${chromium[@]}" --window-size=1180,760 --screenshot="$4" "$address/#ask=Hello" 2>>"$folder/log"
  "${chromium[@]}" --window-size=1180,760 --force-dark-mode --enable-features=WebContentsForceDark:inversion_method/none \
    --blink-settings=preferredColorScheme=0 --screenshot="${4%.png}-dark.png" "$address/#ask=Hello" 2>>"$folder/log"
fi
echo "the page holds"
