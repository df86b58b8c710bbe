#include "megatron/training/run/local_checkpoints.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "megatron/base/hash.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

constexpr std::string_view kNotSaved = "the local checkpoint was not saved";

// A number that no other save has.
uint64_t fresh_number(int64_t iteration) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return hash_text(fmt::format("{} {} {} {}", host_name(), ::getpid(), now, iteration));
}

// What a rank sends along with its chunks.
std::string to_text(const TrainingState& state, const std::vector<StoredTensor>& plan) {
  CheckpointIndex index{state, {{.name = "share"}}, plan};
  for (StoredTensor& tensor : index.tensors)
    for (StoredChunk& piece : tensor.pieces) piece.file = 0;
  return index.to_json().dump();
}

}  // namespace

struct LocalCheckpoints::Job {
  std::string set;
  int64_t iteration = 0;
  std::vector<Share> shares;
  std::exception_ptr error;
  std::atomic<bool> done = false;  // error is final
  std::thread thread;
};

LocalCheckpoints::LocalCheckpoints(RankContext& ctx, const ProcessGroup& world, Options options)
    : ctx_(ctx),
      world_(world),
      options_(std::move(options)),
      places_(ReplicaPlaces::of(world, options_.factor, options_.jump)) {
  if (options_.factor > 1 && places_.hosts == 1)
    note_ = fmt::format("all {} ranks are on one machine: copies of local checkpoints do not outlive it",
                        world.size());
  if (places_.has_fewer_copies())
    note_ = fmt::format(
        "local checkpoints have fewer copies than --replication-factor {}: {} ranks make up too few domains "
        "of --replication-jump {}",
        options_.factor, world.size(), places_.jump);
}

LocalCheckpoints::~LocalCheckpoints() {
  if (job_ && job_->thread.joinable()) job_->thread.join();
}

void LocalCheckpoints::save(const TrainingState& state, std::span<const ShardedTensor> tensors, bool async,
                            std::span<const std::vector<Tensor>> order) {
  finish();
  if (options_.fully_parallel)
    update_plan(
        world_, kNotSaved, [&] { return describe(tensors); }, plans_);
  auto job = std::make_unique<Job>();
  Share own{world_.rank(), state, {}, {}};
  agree(world_, kNotSaved, [&] {
    own.plan = options_.fully_parallel ? plans_.plan : whole_share(own.owner, describe(tensors));
    snapshot_.take(ctx_, own_pieces(own.owner, tensors, own.plan), order);
    return "";
  });
  job->set = broadcast_text(world_, local_set_name(state.iteration, fresh_number(state.iteration)), 0);
  job->iteration = state.iteration;
  job->shares = exchange(std::move(own));
  const auto write = [job = job.get(), &snapshot = snapshot_, folder = options_.folder,
                      rank = world_.rank()] {
    try {
      const std::span<const OwnChunk> copies = snapshot.copies();
      job->shares.front().chunks.assign(copies.begin(), copies.end());
      for (const Share& share : job->shares)
        write_local_share(folder, job->set, share.owner, rank, share.state, share.plan, share.chunks);
    } catch (...) {
      job->error = std::current_exception();
    }
    job->done.store(true, std::memory_order_release);
  };
  job_ = std::move(job);
  if (async)
    job_->thread = std::thread(write);
  else
    write();
}

// This rank's own share, then those that it keeps for others.
std::vector<LocalCheckpoints::Share> LocalCheckpoints::exchange(Share own) {
  const auto parse = [](const std::string& text) {
    return CheckpointIndex::from_json(Json::parse(text, "share of a rank"), "the share", IndexScope::share);
  };
  std::vector<Tensor> sent;
  std::string text;
  if (!places_.holders[static_cast<size_t>(world_.rank())].empty()) {
    for (const OwnChunk& chunk : snapshot_.copies()) sent.push_back(host_values(chunk));
    text = to_text(own.state, own.plan);
  }
  std::vector<ReceivedReplica> received =
      exchange_replicas(world_, places_, text, sent, [&](const std::string& announced) {
        std::vector<Tensor> targets;
        for (const StoredTensor& tensor : parse(announced).tensors)
          for (const StoredChunk& piece : tensor.pieces)
            targets.push_back(host_tensor(piece.box.extent, tensor.dtype));
        return targets;
      });
  std::vector<Share> shares;
  shares.push_back(std::move(own));
  for (ReceivedReplica& replica : received) {
    CheckpointIndex index = parse(replica.text);
    Share share{replica.owner, std::move(index.state), std::move(index.tensors), {}};
    size_t next = 0;
    for (const StoredTensor& tensor : share.plan)
      for (const StoredChunk& piece : tensor.pieces)
        share.chunks.push_back({piece_key(tensor, piece.box), replica.tensors[next++]});
    shares.push_back(std::move(share));
  }
  return shares;
}

std::optional<int64_t> LocalCheckpoints::poll() {
  if (!job_) return {};
  int32_t done = job_->done.load(std::memory_order_acquire) ? 1 : 0;
  world_.all_reduce(Tensor::wrap(&done, {1}, DType::I32), ReduceOp::Min).wait();
  if (done == 0) return {};
  return finish();
}

std::optional<int64_t> LocalCheckpoints::finish() {
  if (!job_) return {};
  const std::unique_ptr<Job> job = std::move(job_);
  if (job->thread.joinable()) job->thread.join();
  job->shares.clear();
  snapshot_.release();
  agree(world_, kNotSaved, [&] {
    if (job->error) std::rethrow_exception(job->error);
    return "";
  });
  // Before the next collective of this rank, and so before anybody writes the next set.
  remove_other_sets(options_.folder, job->set);
  return job->iteration;
}

// What this rank sees of sets: iteration, name, and what they were saved behind.
std::string LocalCheckpoints::list_sets() const {
  Json::Array own;
  std::string last;
  for (const LocalShare& share : list_local_shares(options_.folder)) {
    if (share.set == last) continue;
    try {
      const std::optional<BaseCheckpoint> base = read_index(share.path, IndexScope::share).state.base;
      Json::Array line{share.iteration, share.set};
      if (base) {
        line.emplace_back(base->iteration);
        line.emplace_back(base->checksum);
      }
      own.emplace_back(std::move(line));
      last = share.set;
    } catch (const DamagedCheckpoint&) {  // another share of the set may tell
    }
  }
  return Json(std::move(own)).dump();
}

std::vector<LocalCheckpoints::Candidate> LocalCheckpoints::candidates() const {
  std::map<std::string, Candidate> sets;
  for (const std::string& text : agree(world_, "", [&] { return list_sets(); })) {
    const Json list = Json::parse(text, "list of local checkpoints");
    for (const Json& item : list.as_array()) {
      Candidate candidate{item[0].as_int(), item[1].as_string(), {}};
      if (item.size() > 2) candidate.base = {item[2].as_int(), item[3].as_string()};
      sets.try_emplace(candidate.set, candidate);
    }
  }
  std::vector<Candidate> candidates;
  for (auto& [name, candidate] : sets) candidates.push_back(std::move(candidate));
  std::ranges::stable_sort(candidates, std::ranges::greater{}, &Candidate::iteration);
  return candidates;
}

// Ranks that see the same folder: they share the reading.
std::vector<int> LocalCheckpoints::ranks_here() const {
  std::error_code error;
  const std::string own =
      host_name() + ":" + std::filesystem::weakly_canonical(options_.folder, error).string();
  std::vector<int> ranks;
  const std::vector<std::string> all = all_gather_strings(world_, own);
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == own) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

HeldState LocalCheckpoints::read_shares(const std::string& set, const std::vector<int>& here,
                                        std::vector<std::string>& damages) const {
  const auto reader_of = [&](int owner) {
    return std::ranges::binary_search(here, owner) ? owner : here[static_cast<size_t>(owner) % here.size()];
  };
  HeldState held;
  std::set<int> taken;  // owners of whom one sound share is there
  for (const LocalShare& share : list_local_shares(options_.folder)) {
    if (share.set != set || reader_of(share.owner) != world_.rank() || taken.contains(share.owner)) continue;
    try {
      CheckpointReader reader(share.path, true, IndexScope::share);
      HeldState part;
      for (const StoredTensor& tensor : reader.index().tensors)
        for (const StoredChunk& piece : tensor.pieces) {
          part.shards.push_back({tensor.name, tensor.dtype, box_shard(tensor.shape, piece.box)});
          part.chunks.push_back({tensor.name, reader.chunk(tensor, piece)});
        }
      held.shards.insert(held.shards.end(), part.shards.begin(), part.shards.end());
      held.chunks.insert(held.chunks.end(), part.chunks.begin(), part.chunks.end());
      held.state = reader.state();
      taken.insert(share.owner);
    } catch (const DamagedCheckpoint& error) {
      damages.emplace_back(error.what());
    }
  }
  return held;
}

std::optional<TensorSource> LocalCheckpoints::restore(const Candidate& candidate,
                                                      std::span<const ShardDescription> wanted,
                                                      std::vector<std::string>& damages) const {
  const std::vector<int> here = ranks_here();
  HeldState own;
  const std::vector<std::string> texts = agree(world_, "", [&] {
    std::vector<std::string> found;
    own = read_shares(candidate.set, here, found);
    return Json(Json::Array(found.begin(), found.end())).dump();
  });
  for (const std::string& text : texts) {
    const Json list = Json::parse(text, "list of damages");
    for (const Json& line : list.as_array()) damages.push_back(line.as_string());
  }
  return assemble(world_, own, wanted,
                  fmt::format("the local checkpoint of iteration {}", candidate.iteration));
}

}  // namespace megatron
