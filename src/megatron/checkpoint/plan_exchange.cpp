#include "megatron/checkpoint/plan_exchange.h"

#include <algorithm>

#include "megatron/checkpoint/agree.h"
#include "megatron/comm/string_collectives.h"

namespace megatron {
namespace {

int64_t bytes_of(const std::vector<std::string>& texts) {
  int64_t bytes = 0;
  for (const std::string& text : texts) bytes += static_cast<int64_t>(text.size());
  return bytes;
}

}  // namespace

void update_plan(const ProcessGroup& world, std::string_view failure,
                 const std::function<std::vector<ShardDescription>()>& describe, SavePlanCache& cache) {
  std::vector<ShardDescription> shards;
  std::string own;
  const std::vector<std::string> changed = agree(world, failure, [&] {
    shards = describe();
    own = to_text(shards);
    return !cache.made || own != cache.own ? "changed" : "";
  });
  if (std::ranges::all_of(changed, [](const std::string& mark) { return mark.empty(); })) return;
  cache.made = false;
  const std::vector<std::string> requests = plan_requests(shards, world.size());
  const std::vector<std::string> asked = all_to_all_strings(world, requests);
  std::vector<std::string> answers;
  int64_t seen = 0;
  agree(world, failure, [&] {
    answers = plan_answers(asked, &seen);
    return "";
  });
  const std::vector<std::string> answered = all_to_all_strings(world, answers);
  const PlanTraffic traffic{.sent = bytes_of(requests) + bytes_of(answers),
                            .received = bytes_of(asked) + bytes_of(answered),
                            .seen = seen};
  cache = {true, std::move(own), own_share(world.rank(), shards, answered), traffic};
}

}  // namespace megatron
