#!/usr/bin/env bash
# nccl_restart.sh PROGRAM [case...]: four processes that NCCL connects on one GPU go on after faults (docs/resilience.md). Of
# each restart the table, which comes last, tells the seconds from its notice to the end of the next step, what took them, and how
# many they are without a median step. The exit status is not 0 where a run does not reach its end, or losses are not those, bit
# for bit, of runs that were stopped after the same iterations and started again in the same layouts.
#   tiny     a tiny model, tp 2 dp 2, and the same restarted by hand
#   pp       Llama 1B, pp 2 dp 2: a replica without one of its stages is dropped
#   tp       Llama 1B, tp 2 dp 2: a replica goes on with one rank
#   reserve  Llama 1B, dp 2, two processes in reserve: one takes a dead one's place and state
#   tuned    Llama 1B as in tp, with GEMM autotuning
# Without cases: tiny, pp and tp; a case that would begin after MEGATRON_SECONDS (130) is left out.
#   MEGATRON_DEVICE=cpu  without a GPU, over TCP (tiny alone is sensible there)
#   MEGATRON_LOGS=folder keeps what the processes say
set -uo pipefail
program=$(readlink -f "${1:?nccl_restart.sh PROGRAM [case...]}")
shift
cases=("$@")
[[ ${#cases[@]} -eq 0 ]] && cases=(tiny pp tp)
limit=${MEGATRON_SECONDS:-130}
work=${MEGATRON_LOGS:-$(mktemp -d)}
mkdir -p "$work"
work=$(readlink -f "$work")
running=()
end_all() {
  for child in "${running[@]}"; do kill -KILL "$child" 2>/dev/null; done
  [[ -n ${MEGATRON_LOGS:-} ]] || rm -rf "$work"
}
trap end_all EXIT
failed=0
fault() { printf 'nccl_restart: %s\n' "$1" && failed=1; }

device=${MEGATRON_DEVICE:-cuda} comm=nccl
[[ $device == cpu ]] && comm=auto
export WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MEGATRON_CACHE=
# NCCL takes each process for a host of its own, which lets several have one GPU. Their kernels take turns, so that many bytes
# should leave in each turn.
export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_MAX_NCHANNELS=${NCCL_MAX_NCHANNELS:-2} NCCL_BUFFSIZE=${NCCL_BUFFSIZE:-33554432}

common=(--device "$device" --comm "$comm" --mock-data --micro-batch-size 1 --attention-dropout 0 --hidden-dropout 0 --log-interval 1
  --inprocess-restart --inprocess-heartbeat-interval 0.2 --inprocess-heartbeat-timeout 2 --distributed-timeout-minutes 1)
# Split masters, which come back from memory as they are; kernels without atomics, as results are compared bit for bit.
tiny=(--recipe tiny/llama --train-iters 16 --global-batch-size 8 -tp 2 --inprocess-soft-timeout 3 model.params_dtype=bf16
  --use-precision-aware-optimizer --deterministic-mode)
llama=(--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --group-query-attention
  --num-query-groups 8 --kv-channels 64 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
  model.vocab_size=128256 --seq-length 1024 --max-position-embeddings 1024 --bf16 --grad-reduce-in-bf16 --lr 1e-4
  --global-batch-size 4)

stopped() { grep -qE '^[0-9]+ \(.*\) T ' "/proc/$1/stat" 2>/dev/null; }

# processes NAME SECONDS ARGUMENT...: runs a start to its end; whoever is stopped then, or still runs, is killed. Says which process
# ended otherwise than well or by a planted SIGKILL.
processes() {
  local name=$1 seconds=$2 rank status child begin=$SECONDS children=()
  shift 2
  rm -rf "$work/$name.store"
  for rank in 0 1 2 3; do
    RANK=$rank LOCAL_RANK=$rank NCCL_HOSTID="$name-$rank" MEGATRON_STORE=$work/$name.store \
      "$program" pretrain "${common[@]}" "$@" >/dev/null 2>>"$work/$name.$rank" &
    children+=($!)
  done
  running=("${children[@]}")
  while ((SECONDS - begin < seconds)); do
    local waits=0
    for child in "${children[@]}"; do
      kill -0 "$child" 2>/dev/null && ! stopped "$child" && waits=1
    done
    ((waits)) || break
    sleep 0.1
  done
  for rank in 0 1 2 3; do
    if kill -0 "${children[rank]}" 2>/dev/null; then
      stopped "${children[rank]}" || fault "$name: process $rank has not ended within $seconds s"
      kill -KILL "${children[rank]}"
    fi
    wait "${children[rank]}" 2>/dev/null
    status=$?
    [[ $status -eq 0 || $status -eq 137 ]] || {
      fault "$name: process $rank ended with $status"
      tail -5 "$work/$name.$rank" | cut -c1-400
    }
  done
  running=()
}

# Iteration, loss and gradient norm of each step, as exactly as they were computed.
losses() { grep -oE '"(iteration|lm_loss|grad_norm)":[^,}]+' "$1" | paste -sd' \n' - 2>/dev/null; }
median_step() {
  grep -oE '"iteration_ms":[0-9.e+-]+' "$1" | cut -d: -f2 | sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)] / 1e3}'
}

rows=$work/rows
: >"$rows"
# tell CASE ITERATIONS FAULTS: rows of the table, of what a run with as many faults has said.
tell() {
  local median=0
  [[ -s $work/$1.metrics ]] && median=$(median_step "$work/$1.metrics")
  # Each restart has a line before its first step, and one with its times behind it.
  grep -ohE 'restart [0-9]+: (.* computed again|[0-9.]+ s from the fault .*)' "$work/$1".[0-3] | awk '
    / computed again$/ { told[$2 + 0] = $0; if ($2 + 0 > last) last = $2 + 0 }
    / s from the fault / { number = $2 + 0; sub(/^restart [0-9]+: /, ""); times[number] = $0 }
    END { for (i = 1; i <= last; i++) if (i in told) print told[i] "; " (i in times ? times[i] : "its first step did not end") }
  ' >"$work/$1.restarts"
  awk -v name="$1" -v median="$median" '
    / s from the fault / {
      cause = $0; sub(/^restart [0-9]+: /, "", cause); sub(/;.*/, "", cause)
      layout = $0; sub(/.*\(tp/, "tp", layout); sub(/\), from.*/, "", layout)
      from = $0; sub(/.*, from iteration /, "", from); sub(/;.*/, "", from)
      times = $0; sub(/.*; /, "", times)
      total = times + 0
      gsub(/[^0-9. ]/, "", times); split(times, t, " ")
      printf "%-8s %6.2f %6.2f %6.2f | %5.2f %5.2f %5.2f %5.2f %5.2f %5.2f | %s from %s: %s\n", name, total, median,
        total - median, t[2], t[3], t[4], t[5], t[6], t[7], layout, from, substr(cause, 1, 60)
    }' "$work/$1.restarts" >>"$rows"
  local told reached
  told=$(wc -l <"$work/$1.restarts")
  [[ $told -ge $3 ]] || fault "$1: $told restarts after $3 faults"
  reached=$(tail -1 "$work/$1.metrics" 2>/dev/null | grep -oE '"iteration":[0-9]+' | cut -d: -f2)
  [[ $reached == "$2" ]] || fault "$1: the last iteration is ${reached:-none} of $2"
}

# The tiny run again, stopped and started by hand where the other one was.
by_hand() {
  local from slots arguments=()
  # Where an older state was gone back to, what had followed it does not count.
  awk '{
      from = $0; sub(/.*, from iteration /, "", from)
      slots = ""; if ($0 ~ / without slots /) { slots = $0; sub(/.* without slots /, "", slots); sub(/\), from.*/, "", slots) }
      while (n > 0 && at[n] >= from + 0) n--
      at[++n] = from + 0; lost[n] = slots
    }
    END { for (i = 1; i <= n; i++) print at[i], lost[i] }' "$work/tiny.restarts" >"$work/segments"
  while read -r from slots; do
    if ((from > 0)); then
      processes hand 40 "${tiny[@]}" "${arguments[@]}" --exit-interval "$from" --save "$work/c" --load "$work/c" \
        --metrics "$work/hand.metrics"
    fi
    arguments=()
    [[ -n $slots ]] && read -ra arguments <<<"--non-active-ranks $slots"
  done <"$work/segments"
  processes hand 40 "${tiny[@]}" "${arguments[@]}" --save "$work/c" --load "$work/c" --metrics "$work/hand.metrics"
  if [[ -s $work/hand.metrics ]] && diff <(losses "$work/tiny.metrics") <(losses "$work/hand.metrics") >"$work/differences"; then
    echo "tiny: losses and norms are those of restarts by hand, bit for bit"
  else
    fault "tiny: losses are not those of restarts by hand"
    head -6 "$work/differences"
  fi
}

for each in "${cases[@]}"; do
  if ((SECONDS > limit)); then
    fault "$each is left out: $SECONDS s have passed"
    continue
  fi
  begin=$SECONDS
  metrics=(--metrics "$work/$each.metrics")
  case $each in
    tiny)
      processes tiny 60 "${tiny[@]}" "${metrics[@]}" --inject-fault throw@1:4,kill@3:8,hang@0:12
      tell tiny 16 3
      by_hand
      ;;
    pp)
      processes pp 75 "${llama[@]}" "${metrics[@]}" -pp 2 --train-iters 7 --inject-fault throw@1:2,kill@3:5
      tell pp 7 2
      ;;
    tp)
      processes tp 90 "${llama[@]}" "${metrics[@]}" -tp 2 --train-iters 7 --inject-fault throw@1:2,kill@3:5
      tell tp 7 2
      ;;
    reserve)
      processes reserve 90 "${llama[@]}" "${metrics[@]}" --inprocess-active-world-size 2 --train-iters 12 \
        --inject-fault throw@0:4,kill@1:8
      tell reserve 12 2
      ;;
    tuned)
      MEGATRON_CACHE=$work/cache processes tuned 120 "${llama[@]}" "${metrics[@]}" -tp 2 --train-iters 12 \
        --inject-fault throw@1:4,kill@3:8
      tell tuned 12 2
      ;;
    *) fault "$each: there is no such case" ;;
  esac
  printf '%s: %d s\n' "$each" "$((SECONDS - begin))"
done
printf '\n%-8s %6s %6s %6s | %5s %5s %5s %5s %5s %5s | %s\n' case total median beyond stop meet 'set up' resto. keep step \
  'layout and state: fault'
cat "$rows"
exit "$failed"
