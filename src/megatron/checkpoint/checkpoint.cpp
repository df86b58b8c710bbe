#include "megatron/checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {

namespace {

constexpr std::string_view kNotSaved = "the checkpoint was not saved";

std::string to_text(const std::optional<WrittenFile>& written) {
  if (!written) return "";
  const Json::Array checksums(written->checksums.begin(), written->checksums.end());
  return Json(Json::Array{written->file.name, written->file.bytes, written->file.header_checksum, checksums})
      .dump();
}

std::optional<WrittenFile> file_from_text(const std::string& text) {
  if (text.empty()) return {};
  const Json json = Json::parse(text, "description of a file");
  WrittenFile written{{json[0].as_string(), json[1].as_int(), {}, json[2].as_string()}, {}};
  for (const Json& checksum : json[3].as_array()) written.checksums.push_back(checksum.as_string());
  return written;
}

// One save from its plan to its publication, in the steps that both ways of saving share.
class Save {
 public:
  Save(const ProcessGroup& world, SaveRequest request, SavePlanCache& plans) : request_(std::move(request)) {
    make_plan(world, plans);
    directory_ = guarded(world, [&] {
      return agree(world, kNotSaved, [&] {
        step("create");
        return world.rank() == 0 ? begin_save(request_.root, request_.state.iteration) : "";
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
        snapshot.take(ctx, pieces(world.rank()));
        return "";
      });
      return "";
    });
    request_.tensors.clear();
  }

  // `write` gives what this rank wrote.
  std::string publish(const ProcessGroup& world, const std::function<std::optional<WrittenFile>()>& write) {
    return guarded(world, [&] {
      const std::vector<std::string> texts = agree(world, kNotSaved, [&] {
        step("write");
        return to_text(write());
      });
      return agree(world, kNotSaved, [&] { return world.rank() == 0 ? publish_all(texts) : ""; })[0];
    });
  }

 private:
  // Ranks tell each other what they hold only where that has changed on some rank.
  void make_plan(const ProcessGroup& world, SavePlanCache& plans) {
    std::string own;
    const std::vector<std::string> changed = agree(world, kNotSaved, [&] {
      step("describe");
      own = megatron::to_text(describe(request_.tensors));
      return plans.plan.empty() || own != plans.own ? "changed" : "";
    });
    if (std::ranges::any_of(changed, [](const std::string& mark) { return !mark.empty(); })) {
      std::vector<std::vector<ShardDescription>> ranks;
      for (const std::string& text : all_gather_strings(world, own)) ranks.push_back(shards_from_text(text));
      plans = {own, plan_save(ranks)};
    }
    plan_ = plans.plan;
  }

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
    std::vector<std::optional<WrittenFile>> files;
    for (const std::string& text : texts) files.push_back(file_from_text(text));
    CheckpointIndex index = make_index(request_.state, std::move(plan_), files);
    step("assets");
    for (const CheckpointAsset& asset : request_.assets)
      index.files.push_back(write_asset(directory_, asset.name, std::as_bytes(std::span(asset.contents))));
    step("index");
    write_index(directory_, index);
    step("publish");
    return publish_save(request_.root, request_.state.iteration);
  }

  SaveRequest request_;
  std::vector<StoredTensor> plan_;
  std::string directory_;
};

}  // namespace

std::string save_checkpoint(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request,
                            SavePlanCache* plans) {
  SavePlanCache once;
  Save save(world, request, plans ? *plans : once);
  return save.publish(world, [&] {
    return write_pieces(save.directory(), world.rank(), save.pieces(world.rank()),
                        [&](const Tensor& tensor, void* data) { ctx.to_host(tensor, data); });
  });
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
  job->save.take(ctx, world, snapshot_);
  job_ = std::move(job);
  job_->thread = std::thread([job = job_.get(), rank = world.rank(), &snapshot = snapshot_] {
    try {
      job->file = write_pieces(job->save.directory(), rank, snapshot.copies());
    } catch (...) {
      job->error = std::current_exception();
    }
    job->done.store(true, std::memory_order_release);
  });
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
  job->thread.join();
  snapshot_.release();
  return job->save.publish(world, [&] {
    if (job->error) std::rethrow_exception(job->error);
    return job->file;
  });
}

}  // namespace megatron
