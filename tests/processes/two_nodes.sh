#!/usr/bin/env bash
# two_nodes.sh PROGRAM : runs it as two processes of two ranks each, on two nodes that reach each other by TCP alone:
# network namespaces of this machine with a cable between them. 77: this machine does not allow that.
set -uo pipefail
program=$1
node=megatron-test-$$
skip() { echo "SKIPPED: two nodes were NOT tested: $1" >&2; exit 77; }
command -v ip >/dev/null || skip "iproute2 is not installed"
[[ $(id -u) -eq 0 ]] || skip "network namespaces need root"
ip netns add "$node-a" 2>/dev/null || skip "network namespaces are not allowed here"
cleanup() { ip netns del "$node-a" 2>/dev/null; ip netns del "$node-b" 2>/dev/null; }
trap cleanup EXIT
ip netns add "$node-b" || skip "network namespaces are not allowed here"
ip link add name eth0 netns "$node-a" type veth peer name eth0 netns "$node-b" ||
  skip "this kernel has no virtual network cables"
for side in a b; do
  ip netns exec "$node-$side" ip addr add "10.97.0.$([[ $side == a ]] && echo 1 || echo 2)/24" dev eth0
  ip netns exec "$node-$side" ip link set eth0 up
  ip netns exec "$node-$side" ip link set lo up
done
export WORLD_SIZE=2 MASTER_ADDR=10.97.0.1 MASTER_PORT=29577 MEGATRON_TEST_RANKS=2
RANK=1 ip netns exec "$node-b" "$program" >/dev/null &
other=$!
RANK=0 ip netns exec "$node-a" "$program"
first=$?
wait "$other"
second=$?
echo "node a ended with $first, node b with $second"
[[ $first -eq 0 && $second -eq 0 ]]
