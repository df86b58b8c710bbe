#include "megatron/checkpoint/checkpoint.h"

#include <atomic>
#include <system_error>
#include <thread>

#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {

namespace {

constexpr std::string_view kNotSaved = "the checkpoint was not saved";

// One save from its plan to its publication, in the steps that both ways of saving share.
class Save {
 public:
  Save(const ProcessGroup& world, SaveRequest request, SavePlanCache& plans) : request_(std::move(request)) {
    const auto own = [&] {
      step("describe");
      return describe(request_.tensors);
    };
    update_plan(world, kNotSaved, own, plans);
    plan_ = plans.plan;
  }

  void create_directory(const ProcessGroup& world) {
    directory_ = guarded(world, [&] {
      return agree(world, kNotSaved, [&] {
        step("create");
        return world.rank() == 0 ? begin_save(request_.root, request_.state.iteration, request_.being_removed)
                                 : "";
      })[0];
    });
  }

  const std::string& directory() const { return directory_; }
  std::vector<OwnChunk> pieces(int rank) const { return own_pieces(rank, request_.tensors, plan_); }
  void step(std::string_view name) const {
    if (request_.on_step) request_.on_step(name);
  }
  // Copies this rank's pieces, and lets go of its tensors.
  void take(RankContext& ctx, const ProcessGroup& world, Snapshot& snapshot) {
    guarded(world, [&] {
      agree(world, kNotSaved, [&] {
        step("snapshot");
        snapshot.take(ctx, pieces(world.rank()), request_.change_order);
        return "";
      });
      return "";
    });
    request_.tensors.clear();
    request_.change_order.clear();
  }

  // `write` gives what this rank wrote. Only the first rank learns what all of them did, for the index.
  std::string publish(const ProcessGroup& world, const std::function<std::optional<WrittenFile>()>& write) {
    return guarded(world, [&] {
      std::string share;
      agree(world, kNotSaved, [&] {
        step("write");
        const std::optional<WrittenFile> written = write();
        share = share_index({}, std::move(plan_), written).to_json().dump();
        return "";
      });
      const std::vector<std::string> shares = gather_strings(world, share, 0);
      return agree(world, kNotSaved, [&] { return world.rank() == 0 ? publish_all(shares) : ""; })[0];
    });
  }

 private:
  // What was begun is cleared away where it fails.
  std::string guarded(const ProcessGroup& world, const std::function<std::string()>& work) {
    try {
      return work();
    } catch (const CommError&) {
      throw;  // other ranks may still be writing: the next save clears the rest
    } catch (const Error&) {
      if (world.rank() == 0) discard_save(request_.root, request_.state.iteration);
      throw;
    }
  }

  std::string publish_all(const std::vector<std::string>& texts) {
    std::vector<CheckpointIndex> shares;
    for (const std::string& text : texts)
      shares.push_back(
          CheckpointIndex::from_json(Json::parse(text, "share of a save"), "the share", IndexScope::share));
    CheckpointIndex index = merge_shares(request_.state, std::move(shares));
    step("assets");
    for (const CheckpointAsset& asset : request_.assets)
      index.files.push_back(write_asset(directory_, asset.name, std::as_bytes(std::span(asset.contents))));
    step("index");
    write_index(directory_, index);
    step("publish");
    return publish_save(request_.root, request_.state.iteration);
  }

  SaveRequest request_;
  std::vector<StoredTensor> plan_;  // this rank's share
  std::string directory_;
};

}  // namespace

std::string save_checkpoint(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request,
                            SavePlanCache* plans) {
  SavePlanCache once;
  Save save(world, request, plans ? *plans : once);
  save.create_directory(world);
  return save.publish(
      world, [&] { return write_pieces(save.directory(), world.rank(), save.pieces(world.rank()), &ctx); });
}

struct AsyncSaver::Job {
  Job(const ProcessGroup& world, const SaveRequest& request, SavePlanCache& plans)
      : save(world, request, plans) {}

  Save save;
  std::optional<WrittenFile> file;
  std::exception_ptr error;
  std::atomic<bool> done = false;  // file and error are final
  std::thread thread;
};

AsyncSaver::AsyncSaver() = default;

AsyncSaver::~AsyncSaver() {
  if (job_ && job_->thread.joinable()) job_->thread.join();
}

void AsyncSaver::start(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request) {
  finish(world);
  auto job = std::make_unique<Job>(world, request, plans_);
  // First the copies, which go on while the disk is asked.
  job->save.take(ctx, world, snapshot_);
  try {
    job->save.create_directory(world);
    job->save.step("begin");
  } catch (...) {
    snapshot_.copies();  // they have arrived, so their memory may go
    snapshot_.release();
    throw;
  }
  job_ = std::move(job);
  try {
    job_->thread = std::thread([job = job_.get(), rank = world.rank(), &snapshot = snapshot_] {
      try {
        job->file = write_pieces(job->save.directory(), rank, snapshot.copies());
      } catch (...) {
        job->error = std::current_exception();
      }
      job->done.store(true, std::memory_order_release);
    });
  } catch (const std::system_error&) {  // no thread: finish() tells all ranks
    snapshot_.copies();                 // they have arrived, so their memory may go
    job_->error = std::current_exception();
    job_->done.store(true, std::memory_order_release);
  }
}

std::optional<std::string> AsyncSaver::poll(const ProcessGroup& world) {
  if (!job_) return {};
  int32_t done = job_->done.load(std::memory_order_acquire) ? 1 : 0;
  world.all_reduce(Tensor::wrap(&done, {1}, DType::I32), ReduceOp::Min).wait();
  if (done == 0) return {};
  return finish(world);
}

std::optional<std::string> AsyncSaver::finish(const ProcessGroup& world) {
  if (!job_) return {};
  const std::unique_ptr<Job> job = std::move(job_);
  if (job->thread.joinable()) job->thread.join();
  snapshot_.release();
  return job->save.publish(world, [&] {
    if (job->error) std::rethrow_exception(job->error);
    return job->file;
  });
}

}  // namespace megatron
