#include "megatron/comm/nccl_group.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>

#include "megatron/comm/nccl/nccl_capture.h"
#include "megatron/device/cuda/cuda_runtime_impl.h"

namespace megatron {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return ncclFloat64;
    case DType::F32:
      return ncclFloat32;
    case DType::BF16:
      return ncclBfloat16;
    case DType::F16:
      return ncclFloat16;
    case DType::I64:
      return ncclInt64;
    case DType::I32:
      return ncclInt32;
    case DType::U8:
      return ncclUint8;
    default:
      fail("NCCL: {} cannot be reduced", name_of(dtype));
  }
}

ncclRedOp_t reduction_of(ReduceOp op) {
  constexpr ncclRedOp_t kinds[] = {ncclSum, ncclAvg, ncclMax, ncclMin};
  return kinds[static_cast<size_t>(op)];
}

ncclResult_t queue_all_to_all(const CommRequest& request, ncclComm_t comm, cudaStream_t stream) {
  const size_t width = size_of(request.input.dtype());
  const char* from = bytes_of(request.input);
  char* to = bytes_of(request.output);
  ncclResult_t result = ncclSuccess;
  for (size_t peer = 0; peer < request.send_elements.size(); ++peer) {
    const size_t sent = static_cast<size_t>(request.send_elements[peer]) * width,
                 received = static_cast<size_t>(request.recv_elements[peer]) * width;
    if (sent > 0 && !failed(result))
      result = ncclSend(from, sent, ncclUint8, static_cast<int>(peer), comm, stream);
    if (received > 0 && !failed(result))
      result = ncclRecv(to, received, ncclUint8, static_cast<int>(peer), comm, stream);
    from += sent;
    to += received;
  }
  return result;
}

ncclResult_t queue_one(const CommRequest& request, ncclComm_t comm, cudaStream_t stream) {
  char *in = bytes_of(request.input), *out = bytes_of(request.output);
  switch (request.kind) {
    case CommKind::AllReduce:
      return ncclAllReduce(in, out, static_cast<size_t>(request.input.numel()),
                           type_of(request.input.dtype()), reduction_of(request.op), comm, stream);
    case CommKind::ReduceScatter:
      return ncclReduceScatter(in, out, static_cast<size_t>(request.output.numel()),
                               type_of(request.input.dtype()), reduction_of(request.op), comm, stream);
    case CommKind::AllGather:
      return ncclAllGather(in, out, request.input.bytes(), ncclUint8, comm, stream);
    case CommKind::Broadcast:
      return ncclBroadcast(in, out, request.input.bytes(), ncclUint8, request.peer, comm, stream);
    case CommKind::AllToAll:
      return queue_all_to_all(request, comm, stream);
    case CommKind::Send:
      return ncclSend(in, request.input.bytes(), ncclUint8, request.peer, comm, stream);
    case CommKind::Recv:
      return ncclRecv(out, request.output.bytes(), ncclUint8, request.peer, comm, stream);
    default:
      fail("NCCL: {} moves no GPU memory", name_of(request.kind));
  }
}

// Queues each as a part of one operation. A group that was begun has to be ended, whatever came between.
template <class Parts, class Queue>
ncclResult_t as_one(const Parts& parts, const Queue& queue) {
  ncclResult_t first = ncclGroupStart();
  for (const auto& part : parts)
    if (!failed(first)) first = queue(part);
  const ncclResult_t ended = ncclGroupEnd();
  return failed(first) ? first : ended;
}

ncclResult_t queue_all(std::span<const CommRequest> requests, ncclComm_t comm, cudaStream_t stream) {
  for (const CommRequest& request : requests)
    if (request.kind == CommKind::AllReduce || request.kind == CommKind::ReduceScatter)
      (void)type_of(request.input.dtype());  // throws where it cannot be reduced
  return as_one(requests, [&](const CommRequest& request) { return queue_one(request, comm, stream); });
}

// The rank's stream waits for it, the host does not. The operation's memory is kept until then: whoever gets
// it next uses it in the order of that stream.
class NcclPending final : public PendingOp {
 public:
  NcclPending(std::shared_ptr<NcclWatchdog> watchdog, std::shared_ptr<NcclOp> op,
              std::vector<CommRequest> requests, std::shared_ptr<RankQueue> queue)
      : watchdog_(std::move(watchdog)),
        op_(std::move(op)),
        requests_(std::move(requests)),
        queue_(std::move(queue)),
        captured_(watchdog_->capture != nullptr) {}
  ~NcclPending() override {
    try {
      if (!requests_.empty() && !across()) op_->finished.wait(*queue_->stream);
    } catch (const std::exception&) {  // the GPU is in trouble, and says so to whoever uses it next
    }
  }

  void wait() override {
    watchdog_->require_running();
    require(!across(), "{} at {}: it has to be waited for on the same side of a CUDA graph",
            describe(op_->call), describe(op_->call.where));
    op_->finished.wait(*queue_->stream);
    requests_.clear();
  }
  bool done() override {
    watchdog_->require_running();
    return !captured_ && op_->finished.done();  // what is captured has not even begun
  }
  void withdraw() noexcept override {}

 private:
  // A CUDA graph can only wait for what it holds, and nobody else for that.
  bool across() const { return captured_ != (watchdog_->capture != nullptr); }

  std::shared_ptr<NcclWatchdog> watchdog_;
  std::shared_ptr<NcclOp> op_;
  std::vector<CommRequest> requests_;
  std::shared_ptr<RankQueue> queue_;
  bool captured_;
};

// What NCCL tells GPUs apart by: the GPU, and the name that NCCL_HOSTID gives its host, where it does.
struct GpuId {
  cudaUUID_t gpu;
  uint64_t host;
  bool operator==(const GpuId& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
};

GpuId id_of(int gpu) {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, gpu), "looking at the GPU");
  const char* host = std::getenv("NCCL_HOSTID");
  return {properties.uuid, host ? std::hash<std::string_view>()(host) : 0};
}

}  // namespace

// Of each group's operations, so many are compared with a neighbour's: where ranks run different programs,
// they mostly do so from the first step on.
constexpr uint64_t kCompared = 100;

class NcclBackend final : public GroupBackend {
 public:
  NcclBackend(ProcessGroup control, std::shared_ptr<NcclWatchdog> watchdog, SharedGpus shared)
      : control_(std::move(control)), watchdog_(std::move(watchdog)), shared_(shared) {}

  static std::shared_ptr<GroupBackend> backend_of(const ProcessGroup& group) { return group.backend_; }

  int rank() const override { return control_.rank(); }
  const std::vector<int>& world_ranks() const override { return control_.world_ranks(); }
  const std::string& name() const override { return control_.name(); }
  void abort(const std::string& reason) override { control_.abort(reason); }
  std::string flight_record() const override { return control_.flight_record(); }
  std::string abort_reason() override { return backend_of(control_)->abort_reason(); }
  void require_running() override { watchdog_->require_running(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    watchdog_->set_timeout(timeout);
    control_.set_timeout(timeout);
  }
  bool disconnect(int rank) override { return control_.disconnect(rank); }

  // Of the world: every rank is here, and who does not come is named by the control group. The id of the
  // communicator travels through it.
  void attached() override {
    *backend_of(control_)->queue() = *queue();
    if (communicator_ || by_control_ || !queue()->runtime->device().is_cuda()) return;
    bind();
    by_control_ = gpus_are_shared();
    if (!by_control_) connect(queue()->runtime);
  }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    const Tensor& tensor = requests[0].tensor();
    if (by_control_ || !tensor.defined() || !tensor.device().is_cuda())
      return backend_of(control_)->start(requests);
    const Stream& rank_stream = queue()->of(requests[0]);
    require(communicator_ != nullptr,
            "{} at {}: NCCL has not connected the GPUs of group {}: call world.attach(ctx) on every rank "
            "before the world is split",
            name_of(requests[0].kind), describe(requests[0].where), name());
    watchdog_->require_running();
    bind();
    auto op = std::make_shared<NcclOp>(backend_of(control_), queue()->runtime, sequence_, requests[0]);
    if (watchdog_->capture)
      watchdog_->capture->add(*this, requests);
    else
      announce(op, requests[0]);
    Event ready(queue()->runtime);
    ready.record(rank_stream);
    ready.wait(communicator_->stream);
    const auto stream = static_cast<cudaStream_t>(communicator_->stream.native());
    if (is_message(requests[0].kind)) handshake_new_peers(requests, stream);
    watchdog_->call(*communicator_, name_of(requests[0].kind).data(),
                    [&] { return queue_all(requests, communicator_->comm, stream); });
    op->finished.record(communicator_->stream);
    op->queued = true;
    return std::make_unique<NcclPending>(watchdog_, std::move(op),
                                         std::vector<CommRequest>(requests.begin(), requests.end()), queue());
  }

  std::string cannot_capture() const override {
    return communicator_ ? "" : by_control_ ? "they share a GPU" : "they have no GPUs";
  }
  std::unique_ptr<CapturedOps> begin_capture(CallSite where) override {
    require(communicator_ != nullptr, "capture at {}: NCCL has not connected the GPUs of group {}",
            describe(where), name());
    return std::make_unique<NcclCapture>(watchdog_, control_, backend_of(control_), queue(), where);
  }

  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    ProcessGroup part = control_.split(request.color, request.key, request.name, request.where);
    if (!part) return nullptr;
    auto result = std::make_shared<NcclBackend>(std::move(part), watchdog_, shared_);
    result->by_control_ = by_control_;
    if (communicator_) {
      bind();
      result->connect(queue()->runtime);
    }
    return result;
  }

 private:
  // Of an operation that begins now.
  void announce(const std::shared_ptr<NcclOp>& op, const CommRequest& request) {
    ++sequence_;
    op->entry = op->control->note_begin(op->sequence, request);
    if (calls_ && !is_message(request.kind) && compared_++ < kCompared)
      op->compare(*backend_of(calls_), request);
    watchdog_->add(op);  // before NCCL is called, which waits for the others when they first meet
  }

  void connect(const std::shared_ptr<DeviceRuntime>& runtime) {
    if (control_.size() > 1) calls_ = control_.split(0, control_.rank(), name() + "-calls");
    communicator_ = watchdog_->connect(control_, runtime);
  }

  // Two ranks that meet for the first time exchange a byte. NCCL connects them in the directions that a call
  // uses, and both must ask for the same: one may begin with a send alone where the other sends and receives.
  void handshake_new_peers(std::span<const CommRequest> requests, cudaStream_t stream) {
    std::set<int> peers;
    for (const CommRequest& request : requests)
      if (request.peer != rank() && !met_.contains(request.peer)) peers.insert(request.peer);
    if (peers.empty()) return;
    require(!watchdog_->capture,
            "group {}: rank {} of the group is met for the first time within a CUDA graph", name(),
            *peers.begin());
    std::optional<GpuBytes>& handshakes = communicator_->handshakes;
    if (!handshakes) handshakes.emplace(queue()->runtime, world_ranks().size() + 1);
    char* bytes = handshakes->data;
    check_cuda(cudaMemsetAsync(bytes, 0, handshakes->size, stream), "preparing to meet a rank");
    const ncclComm_t comm = communicator_->comm;
    watchdog_->call(*communicator_, "meeting a rank", [&] {
      return as_one(peers, [&](int peer) {
        const ncclResult_t sent = ncclSend(bytes, 1, ncclUint8, peer, comm, stream);
        return failed(sent) ? sent : ncclRecv(bytes + 1 + peer, 1, ncclUint8, peer, comm, stream);
      });
    });
    met_.merge(peers);
  }

  void bind() const { static_cast<CudaRuntime&>(*queue()->runtime).bind(); }

  bool gpus_are_shared() const {
    GpuId own = id_of(queue()->runtime->device().index);
    std::vector<GpuId> all(world_ranks().size());
    constexpr int64_t bytes = sizeof own;
    control_
        .all_gather(Tensor::wrap(&own, {bytes}, DType::U8),
                    Tensor::wrap(all.data(), {bytes * static_cast<int64_t>(all.size())}, DType::U8))
        .wait();
    for (size_t b = 1; b < all.size(); ++b)
      for (size_t a = 0; a < b; ++a) {
        if (!(all[a] == all[b])) continue;
        if (shared_ == SharedGpus::Refuse)
          throw ConfigError(fmt::format(
              "--comm nccl: ranks {} and {} have the same GPU, which NCCL cannot connect with itself; use as "
              "many ranks as GPUs, or --comm auto",
              world_ranks()[a], world_ranks()[b]));
        return true;
      }
    return false;
  }

  ProcessGroup control_;
  ProcessGroup calls_;  // the same ranks, who tell each other what they called
  std::shared_ptr<NcclCommunicator> communicator_;
  std::shared_ptr<NcclWatchdog> watchdog_;
  SharedGpus shared_;
  bool by_control_ = false;  // ranks share GPUs: `control_` moves their memory, too
  uint64_t sequence_ = 0, compared_ = 0;
  std::set<int> met_;  // ranks with whom messages were exchanged
};

bool nccl_is_built_in() { return true; }

ProcessGroup nccl_group(ProcessGroup world, std::chrono::milliseconds timeout, SharedGpus shared) {
  auto watchdog = std::make_shared<NcclWatchdog>(NcclBackend::backend_of(world), timeout);
  return ProcessGroup(std::make_shared<NcclBackend>(std::move(world), std::move(watchdog), shared));
}

}  // namespace megatron
