#include "megatron/optimizer/schedule.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"

namespace megatron {
namespace {

template <class E>
E named(const std::string& text) {
  auto list = names(E{});
  for (size_t i = 0; i < list.size(); ++i)
    if (text == list[i]) return static_cast<E>(i);
  fail("no such name: {}", text);
}

double number(const Json& group, const Json& args, const char* key) {
  const Json* own = group.find(key);
  return (own ? *own : args.at(key)).as_double();
}

// Three parameter groups per case: plain, with a learning rate of its own, with half the weight decay.
TEST(Schedules, EveryStepOfEveryCaseMatches) {
  Json cases = Json::read(MEGATRON_GOLDEN_DIR "/megatron_parallel/lr_schedules.json").at("cases");
  ASSERT_GT(cases.size(), 10u);
  for (const Json& entry : cases.as_array()) {
    const Json& args = entry.at("args");
    SCOPED_TRACE(args.dump());
    LearningRateSchedule lr;
    lr.decay = named<LrDecay>(args.at("lr_decay_style").as_string());
    if (args.at("lr_wsd_decay_style").is_string())
      lr.wsd_decay = named<WsdDecay>(args.at("lr_wsd_decay_style").as_string());
    lr.initial = args.at("init_lr").as_double();
    lr.warmup = args.at("lr_warmup_steps").as_int();
    lr.duration = args.at("lr_decay_steps").as_int();
    if (args.at("wsd_decay_steps").is_int()) lr.wsd_duration = args.at("wsd_decay_steps").as_int();
    WeightDecaySchedule wd{named<WeightDecayGrowth>(args.at("wd_incr_style").as_string()),
                           args.at("start_wd").as_double(), args.at("end_wd").as_double(),
                           args.at("wd_incr_steps").as_int()};
    const Json& groups = entry.at("groups");
    for (const Json& row : entry.at("history").as_array()) {
      int64_t n = row[0].as_int();
      for (size_t g = 0; g < groups.size(); ++g) {
        lr.peak = number(groups[g], args, "max_lr");
        lr.minimum = number(groups[g], args, "min_lr");
        wd.start = number(groups[g], args, "start_wd");
        wd.end = number(groups[g], args, "end_wd");
        double multiple = groups[g].contains("wd_mult") ? groups[g].at("wd_mult").as_double() : 1.0;
        double want_lr = row[1 + g].as_double(), want_wd = row[1 + groups.size() + g].as_double();
        ASSERT_NEAR(lr.at(n), want_lr, 1e-12 * std::abs(want_lr) + 1e-18) << "group " << g << ", step " << n;
        ASSERT_NEAR(wd.at(n) * multiple, want_wd, 1e-12 * std::abs(want_wd) + 1e-18)
            << "group " << g << ", step " << n;
      }
    }
  }
}

}  // namespace
}  // namespace megatron
