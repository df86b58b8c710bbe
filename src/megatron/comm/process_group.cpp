#include "megatron/comm/process_group.h"

#include <exception>
#include <numeric>

#include "megatron/autograd/rank_context.h"

namespace megatron {
namespace {

void check_tensor(const CommRequest& request, const Tensor& tensor) {
  require(tensor.defined(), "{} at {}: the tensor is undefined", name_of(request.kind),
          describe(request.where));
  require(tensor.is_contiguous(), "{} at {}: {} with strides {} is not contiguous: copy it first",
          name_of(request.kind), describe(request.where), tensor, tensor.strides());
}

void check_pair(const CommRequest& request) {
  check_tensor(request, request.input);
  check_tensor(request, request.output);
  require(
      request.input.dtype() == request.output.dtype() && request.input.device() == request.output.device(),
      "{} at {}: input {} and output {} differ in dtype or device", name_of(request.kind),
      describe(request.where), request.input, request.output);
}

void check_peer(const CommRequest& request, int size) {
  require(request.peer >= 0 && request.peer < size, "{} at {}: there is no rank {} in a group of {}",
          name_of(request.kind), describe(request.where), request.peer, size);
}

void check_reducible(const CommRequest& request) {
  const DType dtype = request.input.dtype();
  const bool integer = dtype == DType::I64 || dtype == DType::I32 || dtype == DType::U8;
  const bool real = dtype == DType::F64 || dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
  require(real || (integer && request.op != ReduceOp::Avg), "{} at {}: {} cannot be reduced by {}",
          name_of(request.kind), describe(request.where), request.input, name_of(request.op));
}

// Whether two tensors share bytes.
bool overlap(const Tensor& a, const Tensor& b) {
  if (a.device() != b.device() || a.device().is_meta() || a.numel() == 0 || b.numel() == 0) return false;
  const char *first = static_cast<const char*>(a.raw()), *second = static_cast<const char*>(b.raw());
  return first < second + b.bytes() && second < first + a.bytes();
}

// `part` may lie in `whole` only where it is this rank's own share.
void check_own_part(const CommRequest& request, const Tensor& whole, const Tensor& part, int rank) {
  if (!overlap(whole, part)) return;
  const char* own = static_cast<const char*>(whole.raw()) + static_cast<size_t>(rank) * part.bytes();
  require(part.raw() == own, "{} at {}: {} overlaps {} elsewhere than at the part of rank {}",
          name_of(request.kind), describe(request.where), part, whole, rank);
}

}  // namespace

Work::Work(std::unique_ptr<PendingOp> op, Tracer* const* tracer)
    : op_(std::move(op)), tracer_(tracer), exceptions_(std::uncaught_exceptions()) {}

Work& Work::operator=(Work&& other) noexcept {
  drop();
  op_ = std::move(other.op_);
  tracer_ = other.tracer_;
  exceptions_ = other.exceptions_;
  return *this;
}

Work::~Work() { drop(); }

void Work::drop() noexcept {
  if (op_ && std::uncaught_exceptions() > exceptions_) op_->withdraw();
  op_.reset();
}

void Work::wait() {
  if (!op_) return;
  const std::unique_ptr<PendingOp> op = std::move(op_);
  const TraceRange range(tracer_ ? *tracer_ : nullptr, kWaitRange);
  op->wait();
}

bool Work::done() { return !op_ || op_->done(); }

void ProcessGroup::attach(const RankContext& ctx) const {
  *backend().queue() = {ctx.runtime, &ctx.stream, &ctx.tracer};
  backend().attached();
}

void ProcessGroup::detach() const { *backend().queue() = {}; }

ProcessGroup ProcessGroup::alone(std::string name) const {
  ProcessGroup group = self(std::move(name), world_ranks()[static_cast<size_t>(rank())]);
  group.backend().share_queue(backend().queue());
  return group;
}

Work ProcessGroup::start(CommRequest request) const { return start(std::span<CommRequest>{&request, 1}); }

Work ProcessGroup::start(std::span<CommRequest> requests) const {
  Tracer* const* tracer = backend().queue()->tracer;
  if (!tracer || !*tracer) return Work(backend().start(requests));
  const TraceRange range(*tracer, fmt::format("{} {}", name_of(requests[0].kind), name()).c_str());
  return Work(backend().start(requests), tracer);
}

Work ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op, CallSite where) const {
  CommRequest request{
      .kind = CommKind::AllReduce, .op = op, .input = tensor, .output = tensor, .where = where};
  check_tensor(request, tensor);
  check_reducible(request);
  return start(std::move(request));
}

Work ProcessGroup::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                  CallSite where) const {
  CommRequest request{
      .kind = CommKind::ReduceScatter, .op = op, .input = input, .output = output, .where = where};
  check_pair(request);
  check_reducible(request);
  require(input.numel() == output.numel() * size(),
          "reduce_scatter at {}: input {} is not {} times output {}", describe(where), input, size(), output);
  check_own_part(request, input, output, rank());
  return start(std::move(request));
}

Work ProcessGroup::all_gather(const Tensor& input, const Tensor& output, CallSite where) const {
  CommRequest request{.kind = CommKind::AllGather, .input = input, .output = output, .where = where};
  check_pair(request);
  require(output.numel() == input.numel() * size(), "all_gather at {}: output {} is not {} times input {}",
          describe(where), output, size(), input);
  check_own_part(request, output, input, rank());
  return start(std::move(request));
}

Work ProcessGroup::all_to_all(const Tensor& input, const Tensor& output, CallSite where) const {
  require(
      input.defined() && output.defined() && input.numel() == output.numel() && input.numel() % size() == 0,
      "all_to_all at {}: input {} and output {} do not divide into {} equal parts", describe(where),
      input.defined() ? input.str() : "undefined", output.defined() ? output.str() : "undefined", size());
  const std::vector<int64_t> parts(static_cast<size_t>(size()), input.numel() / size());
  CommRequest request{.kind = CommKind::AllToAll,
                      .input = input,
                      .output = output,
                      .send_elements = parts,
                      .recv_elements = parts,
                      .where = where};
  check_pair(request);
  require(!overlap(input, output), "all_to_all at {}: input and output overlap", describe(where));
  return start(std::move(request));
}

Work ProcessGroup::all_to_all(const Tensor& input, const Tensor& output,
                              const std::vector<int64_t>& send_rows, const std::vector<int64_t>& recv_rows,
                              CallSite where) const {
  CommRequest request{.kind = CommKind::AllToAll, .input = input, .output = output, .where = where};
  check_pair(request);
  require(!overlap(input, output), "all_to_all at {}: input and output overlap", describe(where));
  const auto elements = [&](const Tensor& tensor, const std::vector<int64_t>& rows, const char* what) {
    require(tensor.rank() >= 1 && static_cast<int>(rows.size()) == size(),
            "all_to_all at {}: {} counts of {} for a group of {}", describe(where), rows.size(), what,
            size());
    int64_t row = 1, total = 0;
    for (int dim = 1; dim < tensor.rank(); ++dim) row *= tensor.size(dim);
    std::vector<int64_t> result;
    for (int64_t count : rows) {
      require(count >= 0, "all_to_all at {}: {} count {} is negative", describe(where), what, count);
      result.push_back(count * row);
      total += count;
    }
    require(total == tensor.size(0), "all_to_all at {}: {} counts add up to {} rows, but {} has {}",
            describe(where), what, total, tensor, tensor.size(0));
    return result;
  };
  request.send_elements = elements(input, send_rows, "input");
  request.recv_elements = elements(output, recv_rows, "output");
  return start(std::move(request));
}

Work ProcessGroup::broadcast(const Tensor& tensor, int root, CallSite where) const {
  CommRequest request{
      .kind = CommKind::Broadcast, .input = tensor, .output = tensor, .peer = root, .where = where};
  check_tensor(request, tensor);
  check_peer(request, size());
  return start(std::move(request));
}

Work ProcessGroup::send(const Tensor& tensor, int peer, CallSite where) const {
  return batch_send_recv({{Message::Direction::Send, tensor, peer}}, where);
}

Work ProcessGroup::recv(const Tensor& tensor, int peer, CallSite where) const {
  return batch_send_recv({{Message::Direction::Recv, tensor, peer}}, where);
}

Work ProcessGroup::batch_send_recv(const std::vector<Message>& messages, CallSite where) const {
  std::vector<CommRequest> requests;
  requests.reserve(messages.size());
  for (const Message& message : messages) {
    const bool send = message.direction == Message::Direction::Send;
    CommRequest request{.kind = send ? CommKind::Send : CommKind::Recv, .peer = message.peer, .where = where};
    (send ? request.input : request.output) = message.tensor;
    check_tensor(request, message.tensor);
    check_peer(request, size());
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return Work();
  return start(requests);
}

void ProcessGroup::barrier(CallSite where) const {
  start({.kind = CommKind::Barrier, .where = where}).wait();
}

ProcessGroup ProcessGroup::split(CommRequest request) const {
  std::shared_ptr<GroupBackend> part = backend().split(std::move(request));
  if (part) part->share_queue(backend().queue());
  return ProcessGroup(std::move(part));
}

ProcessGroup ProcessGroup::split(int color, int key, std::string name, CallSite where) const {
  return split(
      {.kind = CommKind::Split, .color = color, .key = key, .name = std::move(name), .where = where});
}

ProcessGroup ProcessGroup::split_by(const std::function<int(int rank)>& color, std::string name,
                                    CallSite where) const {
  const int own = color(rank());
  std::vector<int> members;
  for (int other = 0; other < size(); ++other)
    if (color(other) == own) members.push_back(other);
  return split({.kind = CommKind::Split,
                .color = own,
                .key = rank(),
                .name = std::move(name),
                .members = std::move(members),
                .where = where});
}

}  // namespace megatron
