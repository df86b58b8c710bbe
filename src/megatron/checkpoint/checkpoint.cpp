#include "megatron/checkpoint/checkpoint.h"

#include <atomic>
#include <thread>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {

namespace {

// Runs a part of the work on every rank and gathers what each returns. Where it fails on some rank, all ranks
// throw the same Error, so that none is left waiting and none believes in a checkpoint that is not there.
std::vector<std::string> agree(const ProcessGroup& world, const std::function<std::string()>& work) {
  constexpr char done = '+', failed = '-';
  std::string own;
  try {
    own = done + work();
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    own = failed + std::string(error.what());
  }
  std::vector<std::string> texts = all_gather_strings(world, own);
  std::string failures;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const char mark = texts[rank][0];
    texts[rank].erase(0, 1);
    if (mark == failed) failures += fmt::format("\n  rank {}: {}", rank, texts[rank]);
  }
  if (!failures.empty()) fail("the checkpoint was not saved:{}", failures);
  return texts;
}

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
  Save(const ProcessGroup& world, SaveRequest request) : request_(std::move(request)) {
    const std::vector<std::string> texts = agree(world, [&] {
      step("describe");
      return megatron::to_text(describe(request_.tensors));
    });
    std::vector<std::vector<ShardDescription>> ranks;
    for (const std::string& text : texts) ranks.push_back(shards_from_text(text));
    plan_ = plan_save(ranks);
    directory_ = guarded(world, [&] {
      return agree(world, [&] {
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
  void release_tensors() { request_.tensors.clear(); }

  // `write` gives what this rank wrote.
  std::string publish(const ProcessGroup& world, const std::function<std::optional<WrittenFile>()>& write) {
    return guarded(world, [&] {
      const std::vector<std::string> texts = agree(world, [&] {
        step("write");
        return to_text(write());
      });
      return agree(world, [&] { return world.rank() == 0 ? publish_all(texts) : ""; })[0];
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

std::string save_checkpoint(RankContext& ctx, const ProcessGroup& world, const SaveRequest& request) {
  Save save(world, request);
  return save.publish(world, [&] {
    return write_pieces(save.directory(), world.rank(), save.pieces(world.rank()),
                        [&](const Tensor& tensor, void* data) { ctx.to_host(tensor, data); });
  });
}

struct AsyncSaver::Job {
  Job(const ProcessGroup& world, const SaveRequest& request) : save(world, request) {}

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
  job_ = std::make_unique<Job>(world, request);
  job_->save.step("snapshot");
  std::vector<OwnChunk> pieces = snapshot(ctx, job_->save.pieces(world.rank()));
  job_->save.release_tensors();
  job_->thread = std::thread([job = job_.get(), rank = world.rank(), pieces = std::move(pieces)] {
    try {
      job->file = write_pieces(job->save.directory(), rank, pieces);
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
  return job->save.publish(world, [&] {
    if (job->error) std::rethrow_exception(job->error);
    return job->file;
  });
}

}  // namespace megatron
