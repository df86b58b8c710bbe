#include "megatron/comm/processes/host_collectives.h"

#include <algorithm>
#include <cstring>

#include "megatron/comm/data_movement.h"

namespace megatron {
namespace {

// Below this an all-reduce sends everything to everyone at once: a second phase would take longer.
constexpr size_t kOnePhaseBytes = 32 << 10;

bool is_meta(const CommRequest& request) {
  return request.tensor().defined() && request.tensor().device().is_meta();
}

void copy(void* target, const void* source, size_t bytes) {
  if (bytes > 0 && target != source) std::memcpy(target, source, bytes);
}

struct Bytes {
  size_t begin, size;
};

// A rank's share of a large all-reduce.
Bytes share_bytes(const CommRequest& request, int rank, int size) {
  const size_t width = size_of(request.input.dtype());
  const ElementRange range = share_of(request.input.numel(), rank, size);
  return {static_cast<size_t>(range.begin) * width, static_cast<size_t>(range.end - range.begin) * width};
}

// Part `rank` of unequal parts.
Bytes part_bytes(const std::vector<int64_t>& elements, int rank, DType dtype) {
  const size_t width = size_of(dtype);
  size_t before = 0;
  for (int i = 0; i < rank; ++i) before += static_cast<size_t>(elements[static_cast<size_t>(i)]);
  return {before * width, static_cast<size_t>(elements[static_cast<size_t>(rank)]) * width};
}

// What `rank` sends to `to` in the first phase.
Bytes sent_to(const CommRequest& request, int to, int size) {
  switch (request.kind) {
    case CommKind::AllReduce:
      return needs_second_phase(request, size) ? share_bytes(request, to, size)
                                               : Bytes{0, request.input.bytes()};
    case CommKind::ReduceScatter:
      return {static_cast<size_t>(to) * request.output.bytes(), request.output.bytes()};
    case CommKind::AllToAll:
      return part_bytes(request.send_elements, to, request.input.dtype());
    case CommKind::AllGather:
    case CommKind::Broadcast:
    case CommKind::Send:
      return {0, request.input.bytes()};
    default:
      return {0, 0};
  }
}

void reduce_into(const CommRequest& request, int rank, const Bytes& own, void* target,
                 const std::map<int, Frame>& frames) {
  if (own.size == 0) return;
  std::vector<const void*> inputs;
  for (int member = 0; member <= static_cast<int>(frames.size()); ++member)
    inputs.push_back(member == rank ? bytes_of(request.input) + own.begin : payload_of(frames.at(member)));
  HostMover().reduce(request.input.dtype(), request.op, inputs, {{target}},
                     static_cast<int64_t>(own.size / size_of(request.input.dtype())));
}

}  // namespace

std::vector<int> awaited_in_first_phase(const CommRequest& request, int rank, int size) {
  switch (request.kind) {
    case CommKind::Send:
      return {};
    case CommKind::Recv:
      return {request.peer};
    case CommKind::Broadcast:
      return request.peer == rank ? std::vector<int>{} : std::vector<int>{request.peer};
    default:
      break;
  }
  std::vector<int> others;
  for (int member = 0; member < size; ++member)
    if (member != rank) others.push_back(member);
  return others;
}

void for_each_part(const CommRequest& request, int rank, int size, const SendPart& send) {
  if (request.kind == CommKind::Recv) return;
  if (request.kind == CommKind::Broadcast && request.peer != rank) return;
  const bool empty = is_meta(request);  // shapes alone
  if (request.kind == CommKind::Send)
    return send(request.peer, bytes_of(request.input), empty ? 0 : request.input.bytes());
  for (int to = 0; to < size; ++to) {
    if (to == rank) continue;
    if (request.kind == CommKind::Split) {
      const std::string text = fmt::format("{} {} {}", request.color, request.key, request.name);
      send(to, text.data(), text.size());
      continue;
    }
    const Bytes part = sent_to(request, to, size);
    send(to, part.size == 0 ? nullptr : bytes_of(request.input) + part.begin, empty ? 0 : part.size);
  }
}

size_t expected_bytes(const CommRequest& request, int rank, int from, int size, int phase) {
  if (is_meta(request)) return 0;
  if (phase == 1) return share_bytes(request, from, size).size;
  switch (request.kind) {
    case CommKind::AllToAll:
      return part_bytes(request.recv_elements, from, request.output.dtype()).size;
    case CommKind::Recv:
      return request.output.bytes();
    default:
      return sent_to(request, rank, size).size;
  }
}

void combine_phase(const CommRequest& request, int rank, int size, int phase,
                   const std::map<int, Frame>& frames) {
  if (is_meta(request)) return;
  char* output = bytes_of(request.output);
  if (phase == 1) {
    for (const auto& [from, frame] : frames) {
      const Bytes share = share_bytes(request, from, size);
      copy(output + share.begin, payload_of(frame), share.size);
    }
    return;
  }
  switch (request.kind) {
    case CommKind::AllReduce: {
      const Bytes own = sent_to(request, rank, size);
      return reduce_into(request, rank, own, output + own.begin, frames);
    }
    case CommKind::ReduceScatter:
      return reduce_into(request, rank, sent_to(request, rank, size), output, frames);
    case CommKind::AllGather: {
      const size_t bytes = request.input.bytes();
      copy(output + static_cast<size_t>(rank) * bytes, bytes_of(request.input), bytes);
      for (const auto& [from, frame] : frames)
        copy(output + static_cast<size_t>(from) * bytes, payload_of(frame), bytes);
      return;
    }
    case CommKind::AllToAll: {
      const DType dtype = request.input.dtype();
      const Bytes source = part_bytes(request.send_elements, rank, dtype),
                  target = part_bytes(request.recv_elements, rank, dtype);
      copy(output + target.begin, bytes_of(request.input) + source.begin, source.size);
      for (const auto& [from, frame] : frames) {
        const Bytes part = part_bytes(request.recv_elements, from, dtype);
        copy(output + part.begin, payload_of(frame), part.size);
      }
      return;
    }
    case CommKind::Broadcast:
    case CommKind::Recv:
      for (const auto& [from, frame] : frames) copy(output, payload_of(frame), request.output.bytes());
      return;
    default:
      return;
  }
}

bool needs_second_phase(const CommRequest& request, int size) {
  return request.kind == CommKind::AllReduce && size > 1 && request.input.bytes() > kOnePhaseBytes;
}

void for_each_second_part(const CommRequest& request, int rank, int size, const SendPart& send) {
  const Bytes own = share_bytes(request, rank, size);
  for (int to = 0; to < size; ++to)
    if (to != rank)
      send(to, own.size == 0 ? nullptr : bytes_of(request.output) + own.begin,
           is_meta(request) ? 0 : own.size);
}

std::shared_ptr<ProcessGroupState> make_split_group(const ProcessGroupState& parent, uint64_t sequence,
                                                    const CommRequest& request,
                                                    const std::map<int, Frame>& frames) {
  if (request.color < 0) return nullptr;
  struct Member {
    int key, rank;
    std::string name;
  };
  std::vector<Member> members = {{request.key, parent.rank, request.name}};
  for (const auto& [from, frame] : frames) {
    const std::string text(payload_of(frame), head_of(frame).payload);
    char* end = nullptr;
    const long color = std::strtol(text.c_str(), &end, 10), key = std::strtol(end, &end, 10);
    if (color == request.color) members.push_back({static_cast<int>(key), from, end + 1});
  }
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return std::pair(a.key, a.rank) < std::pair(b.key, b.rank);
  });
  auto group = std::make_shared<ProcessGroupState>();
  group->id = mix(mix(parent.id + 1, sequence), static_cast<uint64_t>(request.color));
  group->name = std::make_shared<const std::string>(members[0].name);
  for (const Member& member : members) {
    if (member.rank == parent.rank) group->rank = static_cast<int>(group->world_ranks.size());
    group->world_ranks.push_back(parent.world_ranks[static_cast<size_t>(member.rank)]);
  }
  return group;
}

}  // namespace megatron
