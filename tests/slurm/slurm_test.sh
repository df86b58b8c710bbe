#!/usr/bin/env bash
# slurm_test.sh MEGATRON: `megatron launch --slurm` under a real Slurm: munged, slurmctld and two slurmd of this
# machine, all started here with their own folder and ports, and ended here. Exits with 77, and says why, where that
# cannot be.
set -u
megatron=$1
skip() { echo "SKIPPED: $1"; exit 77; }
for program in munged slurmctld slurmd sbatch scontrol squeue sinfo; do
  command -v $program >/dev/null || skip "$program is not installed (Debian: slurm-wlm and munge)"
done
[[ $(id -u) == 0 ]] || skip "slurmd starts jobs of other users, which only root can"

folder=$(mktemp -d /tmp/megatron_slurm.XXXXXX)
port=$((20000 + RANDOM % 20000))
pids=()
finish() {
  [[ -n ${SLURM_CONF:-} ]] && scancel --user=root >/dev/null 2>&1 && sleep 1
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do
    kill "${pids[i]}" 2>/dev/null
    wait "${pids[i]}" 2>/dev/null
  done
  rm -rf "$folder"
}
trap finish EXIT
fail() {
  echo "FAILED: $1"
  tail -n 40 "$folder"/logs/*.log "$folder"/slurmctld.log 2>/dev/null
  exit 1
}

mkdir -p "$folder"/{state,spool,logs,munge}
chmod 711 "$folder" && chmod 700 "$folder/munge"
head -c 1024 /dev/urandom >"$folder/munge/key" && chmod 400 "$folder/munge/key"
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" &
pids+=($!)

host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
ReturnToService=2
KillWait=10
JobRequeue=1
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=4 State=UNKNOWN
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=4 State=UNKNOWN
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP
END

for ((i = 0; i < 50; ++i)); do [[ -S $folder/munge.socket ]] && break; sleep 0.1; done
[[ -S $folder/munge.socket ]] || skip "munged does not start: $(tail -n 1 "$folder/munge/log" 2>/dev/null)"
slurmctld -D -f "$SLURM_CONF" >/dev/null 2>&1 &
pids+=($!)
for node in one two; do
  slurmd -D -N $node -f "$SLURM_CONF" >/dev/null 2>&1 &
  pids+=($!)
done
for ((i = 0; i < 200; ++i)); do
  [[ $(sinfo -h -t idle -o %D 2>/dev/null) == 2 ]] && break
  sleep 0.1
done
[[ $(sinfo -h -t idle -o %D 2>/dev/null) == 2 ]] ||
  skip "the nodes do not come up: $(tail -qn 1 "$folder"/slurmd.*.log 2>/dev/null | head -n 1)"

export MASTER_ADDR=127.0.0.1  # both nodes are this machine, by other names
train=("$megatron" pretrain --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8
  --max-position-embeddings 8 model.vocab_size=32 --mock-data --micro-batch-size 1 --global-batch-size 4
  --lr 1e-2 --device cpu --save-interval 5)

# submit NAME LAUNCH-FLAGS... -- TRAIN-FLAGS...: gives the job's number.
submit() {
  local name=$1
  shift
  local flags=()
  while [[ $1 != -- ]]; do flags+=("$1"); shift; done
  shift
  "$megatron" launch --slurm --nodes 2 --nproc 2 --job-name "$name" --log-dir "$folder/logs" \
    --script "$folder/$name.sbatch" "${flags[@]}" -- "${train[@]}" --save "$folder/$name" --load "$folder/$name" "$@" |
    grep -oE '[0-9]+$'
}
state_of() { scontrol show job "$1" 2>/dev/null | grep -oE 'JobState=[A-Z_]+' | cut -d= -f2; }
exit_of() { scontrol show job "$1" 2>/dev/null | grep -oE 'ExitCode=[0-9]+' | cut -d= -f2; }
restarts_of() { scontrol show job "$1" 2>/dev/null | grep -oE 'Restarts=[0-9]+' | cut -d= -f2; }
# await JOB SECONDS: until it has ended.
await() {
  for ((i = 0; i < $2 * 5; ++i)); do
    case $(state_of "$1") in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) return 0 ;; esac
    sleep 0.2
  done
  fail "job $1 does not end: $(state_of "$1")"
}
expect() { [[ $2 == "$3" ]] || fail "$1 is '$2', not '$3'"; }
said() { grep -qE "$2" "$folder"/logs/"$1"_*.log || fail "'$2' is not in the log of $1"; }

# Four processes on two nodes train to the end.
job=$(submit plain -- --train-iters 10)
await "$job" 60
expect "the state of the first job" "$(state_of "$job")" COMPLETED
[[ -d $folder/plain/iter_0000010 ]] || fail "the first job has saved nothing"
said plain '^0: '  # srun says whose line it is
echo "passed: four processes on two nodes"

# A process is killed: the others notice, the job is queued again and goes on from its checkpoint.
job=$(submit killed --max-restarts 2 -- --train-iters 20 --inject-fault kill@2:13)
await "$job" 120
expect "the state of the second job" "$(state_of "$job")" COMPLETED
expect "its restarts" "$(restarts_of "$job")" 1
said killed 'launch: restart 1 of 2: the step ended with code'
[[ -d $folder/killed/iter_0000020 ]] || fail "the second job has not reached its end"
echo "passed: a killed process"

# The same without another start: the processes that are left go on by themselves.
job=$(submit inprocess --max-restarts 0 -- --train-iters 20 --inject-fault kill@2:13 --inprocess-restart)
await "$job" 60
expect "the state of the third job" "$(state_of "$job")" COMPLETED
said inprocess 'launch: done without some of its processes'
[[ -d $folder/inprocess/iter_0000020 ]] || fail "the third job has not reached its end"
expect "the restarts of the third job" "$(restarts_of "$job")" 0
said inprocess 'restart 1: .* of 4 processes go on'
echo "passed: a killed process, without another start"

# SIGTERM, as before a limit: saved, queued again, and done.
job=$(submit told --max-restarts 2 -- --train-iters 200 --inject-fault slow@0:1=0.1)
for ((i = 0; i < 200; ++i)); do [[ -d $folder/told/iter_0000005 ]] && break; sleep 0.1; done
scancel --signal=TERM "$job" || fail "the fourth job cannot be signalled"
await "$job" 120
expect "the state of the fourth job" "$(state_of "$job")" COMPLETED
expect "its restarts" "$(restarts_of "$job")" 1
said told 'stopped by SIGTERM after iteration [0-9]+, which is saved \(exit code 18\)'
[[ -d $folder/told/iter_0000200 ]] || fail "the fourth job has not reached its end"
echo "passed: a job that was told to leave"

# What does not help is not started again.
job=$(submit refused --max-restarts 2 -- --train-iters 10 --inject-fault nan@0:5)
await "$job" 60
expect "the state of the fifth job" "$(state_of "$job")" FAILED
expect "its exit code" "$(exit_of "$job")" 3
expect "its restarts" "$(restarts_of "$job")" 0
said refused 'not started again: it would not help'
echo "passed: an error that comes again"
