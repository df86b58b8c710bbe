#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace megatron::rl {

// A finished rollout: the tokens of prompt and response, and what the engine and the environment said.
struct BankedRollout {
  std::vector<int64_t> tokens;
  int64_t prompt_tokens = 0;     // of `tokens`, in front
  std::vector<float> log_probs;  // of the response's tokens, by the engine; may be empty
  double reward = 0;
  bool stopped = true;

  friend bool operator==(const BankedRollout&, const BankedRollout&) = default;
};

// All rollouts of one prompt: prompt `prompt` of the run, for training iteration `iteration`.
struct BankedGroup {
  int64_t iteration = 0, prompt = 0;
  std::string environment;
  int64_t task = 0;
  std::vector<BankedRollout> rollouts;

  friend bool operator==(const BankedGroup&, const BankedGroup&) = default;
};

// A ledger of finished groups on the disk (--rl-durable-rollout-bank). A group is on the disk when append()
// returns, so that a run that is killed resumes with it instead of generating it again. One process has a
// bank open at a time.
class RolloutBank {
 public:
  struct Options {
    std::string folder;
    int64_t max_bytes = 0;  // of the ledger; 0: no bound
    // The settings that rollouts depend on. A bank that was written with others is refused.
    std::string run;
    std::function<void(const std::string&)> warn = [](const std::string&) {};  // what people should know
  };

  // Opens the folder or makes it, and reads what is there. A record that was torn by a kill is dropped.
  explicit RolloutBank(Options options);
  ~RolloutBank();
  RolloutBank(const RolloutBank&) = delete;
  RolloutBank& operator=(const RolloutBank&) = delete;

  // The group of this iteration and prompt, where the bank has it.
  std::optional<BankedGroup> find(int64_t iteration, int64_t prompt) const;
  size_t size() const { return records_.size(); }
  int64_t bytes() const { return bytes_; }  // of the ledger

  // Writes a group; one of the same iteration and prompt is replaced. False, and nothing is written, where
  // the ledger would grow beyond max_bytes.
  bool append(const BankedGroup& group);

  // Forgets groups of iterations up to `iteration`, whose checkpoint is complete, and writes the others anew.
  void checkpoint(int64_t iteration);

 private:
  struct Record {
    int64_t offset = 0, bytes = 0;  // in the ledger, with its header
  };
  using Key = std::pair<int64_t, int64_t>;  // iteration, prompt

  void open_ledger();
  void read_ledger();
  std::string read_at(int64_t offset, int64_t bytes) const;
  std::string path() const;

  Options options_;
  std::map<Key, Record> records_;
  int64_t bytes_ = 0;
  int ledger_ = -1, lock_ = -1;
  bool warned_ = false;
};

}  // namespace megatron::rl
