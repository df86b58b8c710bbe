#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/gpu_facts.h"
#include "megatron/config/origin.h"
#include "megatron/config/problems.h"
#include "megatron/config/schema/catalog.h"

namespace megatron {

// What is asked of a configuration: to be shown, to describe a model, to run one, or to train it.
enum class Purpose { inspect, model, forward, training };

// A problem of one setting, with its value and where that came from.
Problem problem_of(const Config& config, std::span<const Origin> origins, std::string_view name,
                   std::string reason, std::string fix);

// A configuration on its way from given values to a whole: derived defaults fill it, rules check it.
class ConfigBuilder {
 public:
  explicit ConfigBuilder(Purpose purpose) : purpose(purpose), origins_(Catalog::all().entries().size()) {}

  Config config;
  Purpose purpose;
  std::optional<int64_t> world_size;          // where it is known
  std::optional<int64_t> data_parallel_size;  // where the world divides
  std::vector<GpuFacts> gpus;                 // where it runs, if that is known and has any

  // Whether the ranks would compute on GPUs, as far as that is known.
  bool on_gpus() const {
    return config.run.device == DeviceChoice::cuda ||
           (config.run.device == DeviceChoice::automatic && !gpus.empty());
  }

  // Whether a layout of so many ranks divides the world, as far as that is known.
  bool divides_world(int64_t ranks) const { return !world_size || *world_size % ranks == 0; }

  // Stores a value that some source gave; a wrong one becomes a problem.
  void give(const Catalog::Entry& entry, const Json& value, const Origin& origin);
  bool given(std::string_view name) const;
  const Origin& origin(std::string_view name) const;
  Json value(std::string_view name) const;

  // Fills in a value that no source gave, or changes one; `why` says so to whoever asks where it came from.
  void derive(std::string_view name, const Json& value, std::string why);

  void reject(std::string_view name, std::string reason, std::string fix);
  void add_problem(Problem problem);
  void note(std::string text);
  const std::set<std::string>& broken() const { return broken_; }  // whose values were refused by themselves

  const std::vector<Problem>& problems() const { return problems_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<Origin>& origins() const { return origins_; }

 private:
  std::vector<Origin> origins_;  // by the settings' places in the catalog
  std::vector<Problem> problems_;
  std::vector<std::string> notes_;
  std::set<std::string> broken_;
};

}  // namespace megatron
