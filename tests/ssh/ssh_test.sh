#!/usr/bin/env bash
# ssh_test.sh MEGATRON: `megatron launch --hosts` by sshd, which is started here on two addresses of the loopback with
# keys of its own, and ended here: a run of four processes, and one that starts again when a connection is cut.
# Exits with 77, and says why, where that cannot be.
set -u
megatron=$1
skip() { echo "SKIPPED: $1"; exit 77; }
sshd=$(command -v sshd || echo /usr/sbin/sshd)
[[ -x $sshd ]] || skip "sshd is not installed (Debian: openssh-server)"
[[ $(id -u) == 0 ]] || skip "sshd needs /run/sshd, which only root can make"

folder=$(mktemp -d /tmp/megatron_ssh.XXXXXX)
port=$((20000 + RANDOM % 20000))
pids=()
finish() {
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  rm -rf "$folder"
}
trap finish EXIT
fail() {
  echo "FAILED: $1"
  tail -n 40 "$folder"/*.log
  exit 1
}

mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f "$folder/host" && ssh-keygen -q -t ed25519 -N '' -f "$folder/user" || fail "no keys"
cp "$folder/user.pub" "$folder/authorized" && chmod 600 "$folder/authorized"
"$sshd" -D -e -f /dev/null -h "$folder/host" -p "$port" -o ListenAddress=127.0.0.2 -o ListenAddress=127.0.0.3 \
  -o AuthorizedKeysFile="$folder/authorized" -o StrictModes=no -o UsePAM=no -o PidFile=none -o PermitRootLogin=yes \
  2>"$folder/sshd.log" &
pids+=($!)
for address in 127.0.0.2 127.0.0.3; do
  echo "[$address]:$port $(cut -d' ' -f1,2 "$folder/host.pub")"
done >"$folder/known"
ssh="ssh -F none -p $port -i $folder/user -o UserKnownHostsFile=$folder/known -o StrictHostKeyChecking=yes"
for _ in $(seq 100); do
  $ssh 127.0.0.2 true 2>"$folder/ssh.log" && break
  sleep 0.1
done
$ssh 127.0.0.3 true 2>"$folder/ssh.log" || fail "sshd does not let us in"
printf '127.0.0.2 slots=2\n127.0.0.3 slots=2\n' >"$folder/hosts"

model="--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
  --vocab-size 64 --mock-data --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --tensor-model-parallel-size 2
  --pipeline-model-parallel-size 2"
meet=$((20000 + RANDOM % 20000))
launch() { "$megatron" launch --hosts "$folder/hosts" --ssh "$ssh" --master-addr 127.0.0.1 --master-port "$meet" "$@"; }
losses() { grep -o '"lm_loss":[^,}]*' "$1"; }

"$megatron" pretrain $model --train-iters 6 --ranks 4 --metrics "$folder/threads.jsonl" >"$folder/threads.log" 2>&1 ||
  fail "the run on threads ended with $?"
launch -- "$megatron" pretrain $model --train-iters 6 --metrics "$folder/hosts.jsonl" >"$folder/run.log" 2>&1 ||
  fail "the run over ssh ended with $?"
[[ -n $(losses "$folder/hosts.jsonl") && $(losses "$folder/hosts.jsonl") == "$(losses "$folder/threads.jsonl")" ]] ||
  fail "losses over ssh are others than on threads"

# A connection that is lost in the middle: the job starts again, and goes on from what it saved.
launch --backoff 0.1 -- "$megatron" pretrain $model --train-iters 60 --save "$folder/ckpt" --load "$folder/ckpt" \
  --save-interval 5 --inject-fault slow@0:1=0.1 --metrics "$folder/cut.jsonl" >"$folder/cut.log" 2>&1 &
job=$!
pids+=($job)
for _ in $(seq 600); do
  grep -q '^\[0\] saved' "$folder/cut.log" && break
  sleep 0.05
done
victim=$(pgrep -f "ssh -F none -p $port .* 127.0.0.3 " | head -n 1)
[[ -n $victim ]] && kill -KILL "$victim" || fail "the run ended before its connection could be cut"
wait "$job" || fail "the run whose connection was cut ended with $?"
grep -q 'restart 1 of 3' "$folder/cut.log" || fail "nothing was started again"
pgrep -f "pretrain --num-layers 2 .* $folder/cut.jsonl" >/dev/null && fail "processes are left"
echo "passed: threads and ssh agree, a cut connection is started again"
