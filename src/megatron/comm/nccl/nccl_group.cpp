#include "megatron/comm/nccl_group.h"

#include <cuda_runtime_api.h>

#include <optional>

#include "megatron/comm/nccl/nccl_watch.h"
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

char* bytes_of(const Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? static_cast<char*>(tensor.raw()) : nullptr;
}

void queue_all_to_all(const CommRequest& request, ncclComm_t comm, cudaStream_t stream) {
  const size_t width = size_of(request.input.dtype());
  const char* from = bytes_of(request.input);
  char* to = bytes_of(request.output);
  for (size_t peer = 0; peer < request.send_elements.size(); ++peer) {
    const size_t sent = static_cast<size_t>(request.send_elements[peer]) * width,
                 received = static_cast<size_t>(request.recv_elements[peer]) * width;
    if (sent > 0)
      check_nccl(ncclSend(from, sent, ncclUint8, static_cast<int>(peer), comm, stream), "sending");
    if (received > 0)
      check_nccl(ncclRecv(to, received, ncclUint8, static_cast<int>(peer), comm, stream), "receiving");
    from += sent;
    to += received;
  }
}

void queue_one(const CommRequest& request, ncclComm_t comm, cudaStream_t stream) {
  char *in = bytes_of(request.input), *out = bytes_of(request.output);
  const auto count = static_cast<size_t>(request.tensor().numel());
  switch (request.kind) {
    case CommKind::AllReduce:
      return check_nccl(ncclAllReduce(in, out, count, type_of(request.input.dtype()),
                                      reduction_of(request.op), comm, stream),
                        "all_reduce");
    case CommKind::ReduceScatter:
      return check_nccl(
          ncclReduceScatter(in, out, static_cast<size_t>(request.output.numel()),
                            type_of(request.input.dtype()), reduction_of(request.op), comm, stream),
          "reduce_scatter");
    case CommKind::AllGather:
      return check_nccl(ncclAllGather(in, out, request.input.bytes(), ncclUint8, comm, stream), "all_gather");
    case CommKind::Broadcast:
      return check_nccl(ncclBroadcast(in, out, request.input.bytes(), ncclUint8, request.peer, comm, stream),
                        "broadcast");
    case CommKind::AllToAll:
      return queue_all_to_all(request, comm, stream);
    case CommKind::Send:
      return check_nccl(ncclSend(in, request.input.bytes(), ncclUint8, request.peer, comm, stream), "send");
    case CommKind::Recv:
      return check_nccl(ncclRecv(out, request.output.bytes(), ncclUint8, request.peer, comm, stream), "recv");
    default:
      fail("NCCL: {} moves no GPU memory", name_of(request.kind));
  }
}

// The rank's stream waits for it, the host does not.
class NcclPending final : public PendingOp {
 public:
  NcclPending(std::shared_ptr<NcclWatch> watch, std::shared_ptr<NcclComm> comm, std::shared_ptr<NcclOp> op,
              std::shared_ptr<RankQueue> queue)
      : watch_(std::move(watch)), comm_(std::move(comm)), op_(std::move(op)), queue_(std::move(queue)) {}
  // Memory that is let go of may be used again, in the order of the rank's stream.
  ~NcclPending() override {
    if (!waited_) op_->finished.wait(*queue_->stream);
  }

  void wait() override {
    watch_->require_running();
    waited_ = true;
    op_->finished.wait(*queue_->stream);
  }
  bool done() override {
    watch_->require_running();
    return op_->finished.done();
  }
  void withdraw() noexcept override {}

 private:
  std::shared_ptr<NcclWatch> watch_;
  std::shared_ptr<NcclComm> comm_;
  std::shared_ptr<NcclOp> op_;
  std::shared_ptr<RankQueue> queue_;
  bool waited_ = false;
};

}  // namespace

class NcclBackend final : public GroupBackend {
 public:
  NcclBackend(ProcessGroup control, std::shared_ptr<NcclWatch> watch, std::shared_ptr<NcclComm> comm)
      : control_(std::move(control)), watch_(std::move(watch)), comm_(std::move(comm)) {}

  static std::shared_ptr<GroupBackend> backend_of(const ProcessGroup& group) { return group.backend_; }

  int rank() const override { return control_.rank(); }
  const std::vector<int>& world_ranks() const override { return control_.world_ranks(); }
  const std::string& name() const override { return control_.name(); }
  void abort(const std::string& reason) override { control_.abort(reason); }
  std::string flight_record() const override { return control_.flight_record(); }
  std::string abort_reason() override { return backend_of(control_)->abort_reason(); }

  // Of the world: every rank is here. The id of the communicator travels through the control group.
  void attached() override {
    *backend_of(control_)->queue() = *queue();
    if (comm_ || !queue()->runtime->device().is_cuda()) return;
    bind();
    control_.barrier();  // who does not come is named here; NCCL would wait for ever
    ncclUniqueId id;
    if (rank() == 0) check_nccl(ncclGetUniqueId(&id), "making an id");
    control_.broadcast(Tensor::wrap(&id, {sizeof id}, DType::U8), 0).wait();
    ncclComm_t native = nullptr;
    check_nccl(ncclCommInitRank(&native, static_cast<int>(world_ranks().size()), id, rank()),
               "connecting the GPUs");
    comm_ = watch_->adopt(native);
  }

  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    const Tensor& tensor = requests[0].tensor();
    if (!tensor.defined() || !tensor.device().is_cuda()) return backend_of(control_)->start(requests);
    const Stream& rank_stream = queue()->of(requests[0]);
    require(comm_ != nullptr,
            "{} at {}: NCCL has not connected the GPUs: call world.attach(ctx) on every rank",
            name_of(requests[0].kind), describe(requests[0].where));
    watch_->require_running();
    bind();
    if (!stream_) stream_.emplace(queue()->runtime);
    auto op = std::make_shared<NcclOp>(backend_of(control_), queue()->runtime, sequence_++,
                                       std::vector<CommRequest>(requests.begin(), requests.end()));
    op->entry = op->control->note_begin(op->sequence, requests[0]);
    Event ready(queue()->runtime);
    ready.record(rank_stream);
    ready.wait(*stream_);
    check_nccl(ncclGroupStart(), "beginning");
    for (const CommRequest& request : requests)
      queue_one(request, comm_->native, static_cast<cudaStream_t>(stream_->native()));
    check_nccl(ncclGroupEnd(), "queueing");
    op->finished.record(*stream_);
    watch_->add(op);
    return std::make_unique<NcclPending>(watch_, comm_, std::move(op), queue());
  }

  std::shared_ptr<GroupBackend> split(CommRequest request) override {
    ProcessGroup part = control_.split(request.color, request.key, request.name, request.where);
    std::shared_ptr<NcclComm> comm;
    if (comm_) {
      bind();
      ncclComm_t native = nullptr;
      const int color = request.color < 0 ? NCCL_SPLIT_NOCOLOR : request.color;
      check_nccl(ncclCommSplit(comm_->native, color, request.key, &native, nullptr), "splitting a group");
      if (native) comm = watch_->adopt(native);
    }
    return part ? std::make_shared<NcclBackend>(std::move(part), watch_, std::move(comm)) : nullptr;
  }

 private:
  void bind() const { static_cast<CudaRuntime&>(*queue()->runtime).bind(); }

  ProcessGroup control_;
  std::shared_ptr<NcclWatch> watch_;
  std::shared_ptr<NcclComm> comm_;
  std::optional<Stream> stream_;
  uint64_t sequence_ = 0;
};

bool nccl_is_built_in() { return true; }

ProcessGroup nccl_group(ProcessGroup world, std::chrono::milliseconds timeout) {
  auto watch = std::make_shared<NcclWatch>(NcclBackend::backend_of(world), timeout);
  return ProcessGroup(std::make_shared<NcclBackend>(std::move(world), std::move(watch), nullptr));
}

}  // namespace megatron
