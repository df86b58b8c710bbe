#include "megatron/cli/commands.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/common/model_arguments.h"
#include "megatron/cli/flags.h"
#include "megatron/models/whole_model.h"
#include "megatron/tensor/philox.h"
#include "megatron/training/run/run_data.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--tokens", 1, "FILE.safetensors[:KEY], whole numbers [batch, length]; random ones where not given"},
    {"--tolerance", 1, "of a layer's largest value (1e-4)"},
    {"--json", 0, "one JSON document"},
};

GivenTokens tokens_for(const CommandLine& line, const ModelConfig& model, const VisionConfig* vision) {
  if (!line.has("--tokens")) {
    GivenTokens given{.rows = 2, .length = std::min<int64_t>(32, model.seq_length), .tokens = {}};
    for (int64_t i = 0; i < given.rows * given.length; ++i)
      given.tokens.push_back(static_cast<int64_t>(Philox::at({1234, 0}, static_cast<uint64_t>(i)).word[0] %
                                                  static_cast<uint64_t>(model.vocab_size)));
    for (int64_t& token : given.tokens)  // there is no image
      if (vision && vision->is_image_token(token)) token = 0;
    return given;
  }
  GivenTokens given = read_tokens("--tokens", line.get("--tokens"), model.vocab_size);
  require_positions("--tokens " + line.get("--tokens"), given.length, model);
  return given;
}

std::vector<double> to_doubles(RankContext& ctx, const Tensor& tensor) {
  Tensor wide = ctx.empty(tensor.shape(), DType::F64);
  ctx.kernels->copy(ctx.kernel_context(), {tensor, wide});
  return ctx.to_vector<double>(wide);
}

// What one rank saw of a model: the stream behind each layer that it holds, and the logits.
struct Seen {
  std::vector<std::vector<double>> layers;  // empty where another rank holds the layer
  std::vector<double> logits;
};

Seen run_model(RankContext& ctx, const ProcessGroup& world, const ModelArguments& arguments,
               const GivenTokens& given) {
  LoadedModel loaded(ctx, world, arguments);
  Seen seen;
  const ModelConfig& model = arguments.config.model;
  seen.layers.resize(static_cast<size_t>(
      is_encoder_decoder(model) ? model.encoder_num_layers + model.decoder_num_layers : model.num_layers));
  ForwardPass pass{.tokens = given.tokens, .rows = given.rows};
  if (is_encoder_decoder(model)) pass.decoder_tokens = given.tokens;
  pass.on_layer = [&](int64_t layer, const Tensor& stream) {
    seen.layers[static_cast<size_t>(layer)] = to_doubles(ctx, stream);
  };
  seen.logits = to_doubles(ctx, loaded.model().logits(ctx, pass));
  return seen;
}

// The largest difference of two lists and their largest finite value. A value that is not finite makes the
// difference infinite, even where both have it: such models cannot be told to agree.
struct Distance {
  double difference = 0, largest = 0;
  double relative() const { return difference / std::max(largest, 1e-300); }
  std::string text() const {
    return std::isfinite(difference) ? fmt::format("differ by at most {:.3g}", difference)
                                     : "are not all finite";
  }
};

Json finite_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Distance distance(const std::vector<double>& a, const std::vector<double>& b) {
  Distance d;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      d.difference = std::numeric_limits<double>::infinity();
      continue;
    }
    d.difference = std::max(d.difference, std::abs(a[i] - b[i]));
    d.largest = std::max({d.largest, std::abs(a[i]), std::abs(b[i])});
  }
  return d;
}

struct Findings {
  std::vector<Distance> layers;
  Distance logits;
  int64_t same_choice = 0, tokens = 0;  // where both have the same likeliest token
};

// Layers are compared where they are held; all ranks get the whole.
Findings compare(RankContext& ctx, const ProcessGroup& world, const Seen& a, const Seen& b,
                 int64_t vocabulary) {
  std::vector<double> both;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const Distance d = distance(a.layers[i], b.layers[i]);
    both.insert(both.end(), {d.difference, d.largest});
  }
  Tensor all = ctx.from_vector(both, {static_cast<int64_t>(both.size())});
  world.all_reduce(all, ReduceOp::Max).wait();
  both = ctx.to_vector<double>(all);
  world.require_running();
  Findings result{.layers = {}, .logits = distance(a.logits, b.logits)};
  for (size_t i = 0; i < both.size(); i += 2) result.layers.push_back({both[i], both[i + 1]});
  for (size_t at = 0; at < a.logits.size(); at += static_cast<size_t>(vocabulary), ++result.tokens) {
    auto best = [&](const std::vector<double>& logits) {
      auto begin = logits.begin() + static_cast<std::ptrdiff_t>(at);
      return std::max_element(begin, begin + vocabulary) - begin;
    };
    result.same_choice += best(a.logits) == best(b.logits);
  }
  return result;
}

// What makes two models incomparable, in words; empty where nothing does.
std::string mismatch(const ModelConfig& a, const ModelConfig& b) {
  const std::tuple<const char*, int64_t, int64_t> sizes[] = {{"layers", a.num_layers, b.num_layers},
                                                             {"hidden size", a.hidden_size, b.hidden_size},
                                                             {"vocabulary", a.vocab_size, b.vocab_size}};
  std::string text;
  for (const auto& [what, first, second] : sizes)
    if (first != second)
      text += fmt::format("{}{} {} against {}", text.empty() ? "" : ", ", what, first, second);
  return text;
}

}  // namespace

std::string compare_help() {
  return model_command_help(
      "usage: megatron compare A B [--tokens FILE.safetensors[:KEY]] [options] [settings]\n"
      "\n"
      "Runs two models, each a Hugging Face directory or a checkpoint, on the same tokens: how far their "
      "logits\n"
      "are apart, and the first layer behind which they differ. Exit code 3 where they do.\n",
      kFlags);
}

int run_compare(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (line.words.size() != 2) throw UsageError("compare: name two models, directories or checkpoints");
  const double tolerance = parse_positive("compare", "--tolerance", line.get("--tolerance", "1e-4"));
  const ModelArguments a = model_arguments(invocation, line, ModelSource::open(line.words[0]));
  const ModelArguments b = model_arguments(invocation, line, ModelSource::open(line.words[1]));
  if (const std::string why = mismatch(a.config.model, b.config.model); !why.empty())
    throw ConfigError(fmt::format("compare: the two are different models: {}", why));
  const GivenTokens given = tokens_for(line, a.config.model, a.source.vision());

  Findings result;
  run_on_ranks(a.config, a.place, invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
    const Seen first = run_model(ctx, world, a, given), second = run_model(ctx, world, b, given);
    Findings found = compare(ctx, world, first, second, a.config.model.vocab_size);
    if (world.rank() == 0) result = std::move(found);
  });
  auto diverging =
      std::ranges::find_if(result.layers, [&](const Distance& d) { return d.relative() > tolerance; });
  const bool equal = diverging == result.layers.end() && result.logits.relative() <= tolerance;
  if (a.place.process != 0) return equal ? 0 : 3;
  if (line.has("--json")) {
    Json document = Json::object();
    document["equal"] = equal;
    document["tolerance"] = tolerance;
    document["logits_max_abs_difference"] = finite_or_null(result.logits.difference);
    document["logits_max_abs"] = result.logits.largest;
    document["same_top_token"] = static_cast<double>(result.same_choice) / static_cast<double>(result.tokens);
    document["first_diverging_layer"] =
        diverging == result.layers.end() ? Json() : Json(diverging - result.layers.begin());
    Json& layers = document["layer_max_abs_difference"] = Json::array();
    for (const Distance& d : result.layers) layers.push_back(finite_or_null(d.difference));
    fmt::print(invocation.out, "{}\n", document.dump(2));
    return equal ? 0 : 3;
  }
  fmt::print(invocation.out,
             "logits {} (largest value {:.3g}); {} of {} tokens have the same likeliest next one\n",
             result.logits.text(), result.logits.largest, result.same_choice, result.tokens);
  if (diverging != result.layers.end())
    fmt::print(invocation.out, "layer {} is the first behind which they {}\n",
               diverging - result.layers.begin(),
               std::isfinite(diverging->difference)
                   ? fmt::format("differ: by {:.3g} of its largest value", diverging->relative())
                   : diverging->text());
  else
    fmt::print(invocation.out, "every layer agrees to {:g} of its largest value\n", tolerance);
  return equal ? 0 : 3;
}

}  // namespace megatron
