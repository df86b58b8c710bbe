#include "megatron/cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "megatron/base/counted.h"
#include "megatron/base/json.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/flags.h"
#include "megatron/comm/launch.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/gpt.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/training/parity.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--steps", 1, "optimizer steps (2)"},
    {"--dtype", 1, "fp64, fp32 or bf16 (fp64)"},
    {"--tolerance", 1, "of a tensor's largest value (1e-9, 1e-4 in fp32, 2e-2 in bf16)"},
    {"--json", 0, "one JSON document"},
};

// What is trained where no model is given.
constexpr const char* kSmallModel = R"(
model: {num_layers: 4, hidden_size: 32, num_attention_heads: 4, ffn_hidden_size: 64, seq_length: 16,
        max_position_embeddings: 16, vocab_size: 64, make_vocab_size_divisible_by: 4,
        attention_dropout: 0.0, hidden_dropout: 0.0}
train: {micro_batch_size: 1, global_batch_size: 8}
)";

// Rounding that sums in another order make is small in the loss; Adam blows it up where a gradient is near
// zero, so that fp32 says nothing of parameters, nor bf16 of gradients.
struct Precision {
  std::string_view name;
  DType dtype;
  double tolerance;
  bool first_gradients, all_tensors;
};
constexpr Precision kPrecisions[] = {{"fp64", DType::F64, 1e-9, true, true},
                                     {"fp32", DType::F32, 1e-4, true, false},
                                     {"bf16", DType::BF16, 2e-2, false, false}};

struct Size {
  std::string_view word, key;
};
constexpr Size kSizes[] = {{"tp", "model.tensor_model_parallel_size"},
                           {"pp", "model.pipeline_model_parallel_size"},
                           {"vpp", "model.virtual_pipeline_model_parallel_size"},
                           {"cp", "model.context_parallel_size"},
                           {"ep", "model.expert_model_parallel_size"},
                           {"etp", "model.expert_tensor_parallel_size"},
                           {"mb", "train.micro_batch_size"},
                           {"dp", ""}};
constexpr std::array kSharding = {"no_shard", "optim", "optim_grads", "optim_grads_params"};  // zero0 … zero3
constexpr std::array kSchedules = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};

struct Layout {
  std::string name;
  std::vector<std::string> overrides;
  std::vector<std::string> lost;  // slots of replicas, as --non-active-ranks takes them
  int64_t dp = 1;
  Config config;
  ParallelSizes sizes;
};

// One piece of a layout, such as tp2, sp, zb-v or model.x=y.
void read_piece(Layout& layout, std::string_view piece) {
  if (piece == "one") return;
  if (piece.find('=') != std::string_view::npos) {
    layout.overrides.emplace_back(piece);
    return;
  }
  if (piece.starts_with("lost")) {
    std::string slots(piece.substr(4));
    std::replace(slots.begin(), slots.end(), '+', ',');
    layout.lost.push_back(slots);
    return;
  }
  if (piece == "sp") {
    layout.overrides.emplace_back("model.sequence_parallel=true");
    return;
  }
  for (const char* schedule : kSchedules)
    if (piece == schedule) {
      layout.overrides.push_back(fmt::format("model.pipeline_schedule={}", schedule));
      return;
    }
  for (size_t level = 0; level < kSharding.size(); ++level)
    if (piece == fmt::format("zero{}", level)) {
      layout.overrides.push_back(fmt::format("ddp.use_distributed_optimizer={}", level > 0));
      layout.overrides.push_back(fmt::format("ddp.use_megatron_fsdp={}", level > 1));
      layout.overrides.push_back(fmt::format("ddp.data_parallel_sharding_strategy={}", kSharding[level]));
      return;
    }
  const size_t digits = piece.find_first_of("0123456789");
  for (const Size& size : kSizes) {
    if (piece.substr(0, digits) != size.word || digits == std::string_view::npos) continue;
    int64_t n = 0;
    const auto [end, error] = std::from_chars(piece.data() + digits, piece.data() + piece.size(), n);
    if (error != std::errc() || end != piece.data() + piece.size() || n < 1) break;
    if (size.key.empty())
      layout.dp = n;
    else
      layout.overrides.push_back(fmt::format("{}={}", size.key, n));
    return;
  }
  throw UsageError(
      fmt::format("parity: '{}' in the layout {} is none of one, sp, tpN, ppN, vppN, dpN, cpN, epN, etpN, "
                  "mbN, lostDP:SLOT+SLOT, zero0 to zero3, a pipeline schedule, or SECTION.KEY=VALUE",
                  piece, layout.name));
}

Layout read_layout(const std::string& word, const Sources& given) {
  Layout layout{.name = word};
  for (size_t at = 0; at <= word.size();) {
    size_t end = at;
    for (int open = 0; end < word.size() && (word[end] != ',' || open > 0); ++end)  // [a,b] is one value
      open += word[end] == '[' ? 1 : word[end] == ']' ? -1 : 0;
    read_piece(layout, std::string_view(word).substr(at, end - at));
    at = end + 1;
  }
  if (!layout.lost.empty())
    layout.overrides.push_back(
        fmt::format("model.non_active_ranks_per_dp=[\"{}\"]", fmt::join(layout.lost, "\",\"")));
  Sources sources = given;
  sources.overrides.insert(sources.overrides.end(), layout.overrides.begin(), layout.overrides.end());
  const ParallelConfig first =
      resolve(sources, {.purpose = Purpose::model, .allow_unavailable = true}).config.parallel;
  const int64_t world = layout.dp * first.tensor_model_parallel_size * first.pipeline_model_parallel_size *
                        first.context_parallel_size;
  sources.overrides.push_back(fmt::format("run.world_size={}", world));
  layout.config = resolve(sources, {.purpose = Purpose::model}).config;
  layout.sizes = parallel_sizes(layout.config, world);
  check_parallel(layout.sizes);
  if (world > kMaxThreadRanks)
    throw ConfigError(
        fmt::format("parity: the layout {} has {} ranks, and a process has at most {}; name a smaller one",
                    word, world, kMaxThreadRanks));
  return layout;
}

// Layouts say how a batch is computed, not what it is.
void require_same_batch(const Layout& first, const Layout& other) {
  const auto check = [&](const char* key, int64_t a, int64_t b) {
    if (a == b) return;
    throw UsageError(
        fmt::format("parity: {} is {} under {} and {} under {}: both train the same batch; give {}={} "
                    "behind the layouts, for all of them",
                    key, a, first.name, b, other.name, key, b));
  };
  const Config &a = first.config, &b = other.config;
  check("train.global_batch_size", a.train.global_batch_size, b.train.global_batch_size);
  check("model.seq_length", a.model.seq_length, b.model.seq_length);
  check("model.vocab_size", a.model.vocab_size, b.model.vocab_size);
}

struct Difference {
  bool equal = true;
  double worst = 0;   // of everything that was compared
  std::string where;  // the worst
  std::string first;  // that is too far
  double first_by = 0;
};

class Comparison {
 public:
  explicit Comparison(double tolerance) : tolerance_(tolerance) {}

  void number(const std::string& what, double a, double b) {
    note(what, std::abs(a - b) / std::max(std::abs(a), 1e-300));
  }
  void tensors(const std::string& what, const WholeTensors& a, const WholeTensors& b,
               const std::vector<std::string>& order) {
    for (const std::string& name : order) {
      if (!a.contains(name) && !b.contains(name)) continue;
      bool both = a.contains(name) && b.contains(name);
      note(what + " of " + name, both ? tensor_difference(a.at(name), b.at(name)) : 1e30);
    }
  }
  Difference result;

 private:
  void note(const std::string& what, double by) {
    if (by > result.worst || std::isnan(by)) {
      result.worst = by;
      result.where = what;
    }
    if (by <= tolerance_ || !result.equal) return;
    result.equal = false;
    result.first = what;
    result.first_by = by;
  }

  double tolerance_;
};

// Names of the parameters in the order of the model.
std::vector<std::string> parameter_order(const ModelConfig& config) {
  GptModel whole(config, {.first_layer = 0, .layers = config.num_layers}, {}, DType::F32);
  std::vector<std::string> names;
  whole.visit([&](Parameter& parameter) { names.push_back(parameter.name); });
  return names;
}

// In the order in which a step makes them: the loss first, parameters last.
Difference compare(const TrainedLayout& a, const TrainedLayout& b, const ModelConfig& model,
                   const Precision& precision, double tolerance) {
  Comparison comparison(tolerance);
  const std::vector<std::string> order = parameter_order(model);
  for (size_t step = 0; step < a.losses.size(); ++step) {
    const std::string at = fmt::format("step {}: ", step + 1);
    comparison.number(at + "loss", a.losses[step], b.losses[step]);
    if (precision.all_tensors || (precision.first_gradients && step == 0)) {
      comparison.tensors(at + "gradient", a.history[step].gradients, b.history[step].gradients, order);
      comparison.number(at + "gradient norm", a.grad_norms[step], b.grad_norms[step]);
    }
    if (precision.all_tensors)
      comparison.tensors(at + "parameter", a.history[step].parameters, b.history[step].parameters, order);
  }
  return comparison.result;
}

const Precision& precision_of(const std::string& name) {
  for (const Precision& precision : kPrecisions)
    if (precision.name == name) return precision;
  throw UsageError(fmt::format("parity: --dtype is fp64, fp32 or bf16, not '{}'", name));
}

}  // namespace

std::string parity_help() {
  std::string text =
      "usage: megatron parity LAYOUT LAYOUT ... [settings] [options]\n"
      "\n"
      "Trains a configuration under several layouts, ranks as threads, and compares each with the first:\n"
      "losses, every gradient, every parameter after each step (fp32: losses and the first gradients; bf16:\n"
      "losses). Names the first tensor that differs.\n"
      "A layout is a list such as tp2,sp or pp2,vpp2,zb-v,dp2 or one: sizes tpN ppN vppN dpN cpN epN etpN\n"
      "mbN, sp, lostDP:SLOT+SLOT (lost ranks of a replica), zero0 to zero3, a pipeline schedule, "
      "SECTION.KEY=VALUE. Without --hf or --config "
      "a\n"
      "small model is trained, changed by the settings that are given.\n"
      "\n"
      "options:\n";
  for (const CommandFlag& flag : kFlags) text += fmt::format("  {:<13}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

int run_parity(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (line.words.size() < 2) throw UsageError("parity: name two layouts, such as one tp2,sp");
  const Precision& precision = precision_of(line.get("--dtype", "fp64"));
  const double tolerance = line.has("--tolerance")
                               ? parse_positive("parity", "--tolerance", line.get("--tolerance"))
                               : precision.tolerance;
  const int64_t steps = parse_int("parity", "--steps", line.get("--steps", "2"));
  if (steps < 1) throw UsageError(fmt::format("parity: --steps must be at least 1, not {}", steps));
  Sources sources = read_sources(line, {.hf = read_hf_settings, .recipe = read_recipe});
  const bool has_model = sources.file || sources.recipe || !line.hf_dir.empty();
  if (!has_model) sources.file = ConfigText{"the small model of megatron parity", kSmallModel};

  std::vector<Layout> layouts;
  for (const std::string& word : line.words) layouts.push_back(read_layout(word, sources));
  if (const TrainConfig& train = layouts[0].config.train; !train.micro_batch_size || !train.global_batch_size)
    throw ConfigError("parity: the batch is not given; use --micro-batch-size 1 --global-batch-size 8");
  for (const Layout& layout : layouts) require_same_batch(layouts[0], layout);
  const auto batches = random_batches(layouts[0].config, steps);
  std::vector<TrainedLayout> trained;
  for (const Layout& layout : layouts) {
    invocation.log.info("{}: {}", layout.name, counted(layout.sizes.world, "rank"));
    trained.push_back(train_layout(
        layout.config, {.sizes = layout.sizes, .dtype = precision.dtype, .keep_history = true}, batches));
  }

  bool equal = true;
  Json document = Json::object();
  document["tolerance"] = tolerance;
  document["dtype"] = precision.name;
  Json& rows = document["comparisons"] = Json::array();
  for (size_t i = 1; i < layouts.size(); ++i) {
    const Difference d = compare(trained[0], trained[i], layouts[0].config.model, precision, tolerance);
    equal = equal && d.equal;
    Json row = Json::object();
    row["a"] = layouts[0].name;
    row["b"] = layouts[i].name;
    row["equal"] = d.equal;
    row["worst"] = d.worst;
    row["worst_at"] = d.where;
    if (!d.equal) row["first_difference"] = d.first;
    rows.push_back(std::move(row));
    if (line.has("--json")) continue;
    if (d.equal)
      fmt::print(invocation.out, "{} = {}: {} steps alike; the largest difference is {:.2g} ({})\n",
                 layouts[0].name, layouts[i].name, steps, d.worst, d.where.empty() ? "none" : d.where);
    else
      fmt::print(invocation.out, "{} and {} differ first at {}: by {:.2g} of its largest value\n",
                 layouts[0].name, layouts[i].name, d.first, d.first_by);
  }
  document["equal"] = equal;
  if (line.has("--json")) fmt::print(invocation.out, "{}\n", document.dump(2));
  return equal ? 0 : 3;
}

}  // namespace megatron
