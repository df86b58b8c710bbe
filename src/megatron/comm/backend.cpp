#include "megatron/comm/backend.h"

namespace megatron {

std::string_view name_of(CommKind kind) {
  constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                        "broadcast",  "send",           "recv",       "barrier",
                                        "split",      "captured step"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(ReduceOp op) {
  constexpr std::string_view names[] = {"sum", "avg", "max", "min"};
  return names[static_cast<size_t>(op)];
}

CommCall::CommCall(const CommRequest& request)
    : kind(request.kind),
      op(request.op),
      has_tensor(request.tensor().defined()),
      peer(request.peer),
      name(request.name),
      where(request.where) {
  if (!has_tensor) return;
  dtype = request.tensor().dtype();
  shape = request.tensor().shape();
}

namespace {

// Where no other rank takes part, or nothing is carried out.
class NothingToWatch final : public CapturedOps {
 public:
  void end() override {}
  void replay(const std::function<void()>& run) override { run(); }
};

}  // namespace

std::string GroupBackend::cannot_capture() const {
  return world_ranks().size() > 1 ? "these ranks are connected by the host" : "";
}

std::unique_ptr<CapturedOps> GroupBackend::begin_capture(CallSite where) {
  require(cannot_capture().empty(), "group {} at {}: nothing can be captured: {}", name(), describe(where),
          cannot_capture());
  return std::make_unique<NothingToWatch>();
}

void GroupBackend::require_running() {
  if (const std::string reason = abort_reason(); !reason.empty()) throw CommAborted(reason);
}

const Stream& RankQueue::of(const CommRequest& request) const {
  require(stream != nullptr,
          "{} at {}: {} is on a GPU, and the world does not know the rank's stream: call world.attach(ctx) "
          "first",
          name_of(request.kind), describe(request.where), request.tensor());
  return *stream;
}

std::string describe(const CommCall& call) {
  std::string text(name_of(call.kind));
  if (call.has_tensor) text += fmt::format(" {}{}", call.dtype, call.shape);
  switch (call.kind) {
    case CommKind::AllReduce:
    case CommKind::ReduceScatter:
      return text + fmt::format(" {}", name_of(call.op));
    case CommKind::Broadcast:
    case CommKind::Recv:
      return text + fmt::format(" from rank {} of the group", call.peer);
    case CommKind::Send:
      return text + fmt::format(" to rank {} of the group", call.peer);
    case CommKind::Split:
      return text + fmt::format(" into groups {}", call.name);
    default:
      return text;
  }
}

std::string describe(const CallSite& where) {
  const std::string_view file = where.file_name();
  const size_t slash = file.rfind('/');
  return fmt::format("{}:{}", slash == std::string_view::npos ? file : file.substr(slash + 1), where.line());
}

}  // namespace megatron
