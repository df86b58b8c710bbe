#include <algorithm>
#include <cmath>
#include <set>

#include "megatron/models/elastic/elastic_draw.h"
#include "megatron/models/elastic/sub_network.h"
#include "megatron/training/plan/flops.h"
#include "megatron/training/step/rank_trainer.h"
#include "parity/cases.h"
#include "parity/settings.h"

// Sub-networks of several widths: every layout against one rank, and each against the model that it stands
// for.
namespace megatron::testing {
namespace {

Config elastic() {
  Config config = small_hybrid("ME*E");
  ModelConfig& model = config.model;
  model.share_embeddings_and_output_weights = false;
  model.mamba_num_groups = 2;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 24;
  model.moe_shared_expert_intermediate_size = 8;
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_router_score_function = RouterScore::sigmoid;
  model.moe_router_enable_expert_bias = true;
  model.moe_router_load_balancing_type = {"none"};
  ElasticConfig& e = config.elastic;
  e.flextron = e.enable_router = e.soft_mask = true;
  e.budget_list = {0.5, 1};
  e.original_model_sample_prob = 0.2;
  e.emb_int_list = {32, 24, 16};
  e.mlp_int_list = {24, 12, 16};
  e.mamba_int_list = {4, 8, 6};
  e.moe_expert_int_list = {4, 2, 3};
  e.router_inter_dim = 6;
  e.router_std = 0.5;
  e.tau_decay = 0.9;
  e.hard_sample_th = 0.7;
  e.lr_mult_router = 3;
  config.train.train_iters = kSteps;
  return config;
}

Config one_width_at_a_time() {
  Config config = elastic();
  config.elastic.soft_mask = false;
  config.elastic.normalize_router_logits = true;
  config.elastic.linear_scaler_end = 1;  // steeper choices leave gradients nothing but noise
  config.elastic.budget_type = "mem";
  return config;
}

void zero3(Config& config) { shard<3>(config, 0); }
void recompute_layers(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = RecomputeMethod::uniform;
  config.execution.recompute_num_layers = 1;
}
void recompute_modules(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"layernorm", "core_attn", "moe", "shared_experts"};
}
void recompute_activations(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"moe_act"};
}

const std::vector<Layout> kLayouts = {
    {.name = "tp2 sp", .tp = 2, .sp = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp2 vpp2", .pp = 2, .vpp = 2},
    {.name = "dp2 ep2", .dp = 2, .ep = 2},
    {.name = "dp2, smaller micro-batches", .dp = 2, .micro_batch = 1},
    {.name = "cp2", .cp = 2},
    {.name = "tp2 sp dp2 ep2 etp1", .tp = 2, .dp = 2, .ep = 2, .etp = 1, .sp = true},
    {.name = "zb-h1 tp2 sp", .tp = 2, .pp = 2, .sp = true, .change = use<PipelineSchedule::zb_h1>},
    {.name = "dp2 zero3", .dp = 2, .change = zero3},
    {.name = "layers made again", .change = recompute_layers},
    {.name = "tp2 sp pp2, layers made again", .tp = 2, .pp = 2, .sp = true, .change = recompute_layers},
    {.name = "modules made again", .change = recompute_modules},
    {.name = "activations of experts made again", .change = recompute_activations}};

void check(const Config& config, std::span<const Layout> layouts) {
  const auto batches = batches_for(config, kSteps);
  const Trained one = train(config, {}, batches);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    const Trained many = train(apply(config, layout), sizes_of(layout), batches);
    expect_equal(one, many, kTolerance);
    for (size_t step = 0; step < one.reports.size(); ++step) {
      ASSERT_EQ(many.reports[step].terms.size(), 1u);
      EXPECT_EQ(many.reports[step].terms[0].name, "param loss");
      EXPECT_NEAR(many.reports[step].terms[0].value, one.reports[step].terms[0].value, kTolerance);
    }
  }
}

TEST(ElasticParity, MixedWidths) { check(elastic(), kLayouts); }
TEST(ElasticParity, OneWidthAtATime) { check(one_width_at_a_time(), std::span(kLayouts).first(9)); }

using Values = std::map<std::string, std::vector<double>>;

Values values_of(RankContext& ctx, RankTrainer& trainer) {
  Values values;
  for (Parameter* parameter : trainer.parameters())
    values[parameter->name] = ctx.to_vector<double>(parameter->value);
  return values;
}

// The most likely width of each axis at a budget, from the router's weights.
SubNetworkSizes chosen_sizes(const Values& values, const std::array<ElasticSizes, kElasticAxes>& axes,
                             size_t budget, size_t budgets) {
  constexpr const char* kNames[] = {"emb", "mlp", "mamba", "moe_expert"};
  SubNetworkSizes sizes{};
  for (size_t axis = 0; axis < kElasticAxes; ++axis) {
    std::vector<int64_t> widths = axes[axis].given;
    std::ranges::sort(widths, std::greater());
    const std::string gate = std::string("elastic_router.") + kNames[axis];
    const auto &fc1 = values.at(gate + ".linear_fc1.weight"), &fc2 = values.at(gate + ".linear_fc2.weight");
    const size_t inner = fc1.size() / budgets;
    double best = -1e300;
    for (size_t i = 0; i < widths.size(); ++i) {
      double logit = 0;
      for (size_t j = 0; j < inner; ++j) {
        const double x = fc1[j * budgets + budget];
        logit += fc2[i * inner + j] * (x > 0 ? x : 0.1 * x);
      }
      if (logit > best) best = logit, sizes[axis] = widths[i];
    }
  }
  return sizes;
}

std::vector<double> part_of(const std::vector<double>& whole, const Shape& shape,
                            const std::vector<std::vector<int64_t>>& indices) {
  std::vector<int64_t> offsets{0};
  for (size_t dim = 0; dim < indices.size(); ++dim) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets)
      for (const int64_t index : indices[dim]) next.push_back(offset * shape[static_cast<int>(dim)] + index);
    offsets = std::move(next);
  }
  std::vector<double> part;
  for (const int64_t offset : offsets) part.push_back(whole[static_cast<size_t>(offset)]);
  return part;
}

// An evaluated sub-network is to the bit of fp64's noise the ordinary model of its sizes, which knows nothing
// of the weights beyond them.
TEST(Elastic, ASubNetworkIsAnOrdinaryModel) {
  std::set<SubNetworkSizes> seen;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    Config config = elastic();
    config.rng.seed = static_cast<int64_t>(seed);
    config.elastic.is_flex_eval = true;
    config.elastic.override_selected_budget = {0.5};
    RankContext ctx;
    const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
    RankTrainer trainer(ctx, config, parallel, DType::F64);
    const auto batches = batches_for(config, 2);
    trainer.step(ctx, batches[0], 0.1);
    const Values values = values_of(ctx, trainer);
    const SubNetworkSizes sizes = chosen_sizes(values, elastic_sizes(config), 1, 2);
    seen.insert(sizes);

    Config small = config;
    small.elastic = {};
    small.model = sub_network(config.model, sizes);
    RankTrainer ordinary(ctx, small, parallel, DType::F64);
    ordinary.set_weights(ctx, [&] {
      std::map<std::string, Shape> shapes;
      for (Parameter* parameter : trainer.parameters()) shapes[parameter->name] = parameter->value.shape();
      for (Parameter* parameter : ordinary.parameters()) {
        const auto indices =
            sub_network_indices(parameter->name, shapes.at(parameter->name), config.model, sizes);
        const auto part = part_of(values.at(parameter->name), shapes.at(parameter->name), indices);
        const Tensor value = ctx.from_vector(part, parameter->value.shape());
        ctx.kernels->copy(ctx.kernel_context(), {value, parameter->value});
      }
    });
    EXPECT_NEAR(trainer.evaluate(ctx, batches[1]), ordinary.evaluate(ctx, batches[1]), 1e-12);
  }
  EXPECT_GT(seen.size(), 1u);
}

// Evaluations are of the whole model where no budget is named.
TEST(Elastic, EvaluatesTheWholeModel) {
  const Config config = elastic();
  Config plain = config;
  plain.elastic = {};
  RankContext ctx;
  const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
  RankTrainer trainer(ctx, config, parallel, DType::F64), ordinary(ctx, plain, parallel, DType::F64);
  const auto batch = batches_for(config, 1)[0];
  EXPECT_NEAR(trainer.evaluate(ctx, batch), ordinary.evaluate(ctx, batch), 1e-13);
}

// What a step minimises, by central differences of the router's weights.
TEST(Elastic, GradientsOfTheRouter) {
  for (const bool memory : {false, true}) {
    Config config = elastic();
    config.elastic.hard_sample_th = 1;
    config.elastic.loss_alpha = 0.7;
    if (memory) config.elastic.budget_type = "mem", config.elastic.original_model_sample_prob = 1;
    RankContext ctx;
    const ParallelContext parallel = ParallelContext::from_sizes(ProcessGroup::self(), {});
    RankTrainer trainer(ctx, config, parallel, DType::F64);
    const std::vector<Batch> batches = batches_of_tokens(batches_for(config, 1)[0], 2, 8);
    const auto loss = [&] {
      const Gradients made = trainer.gradients(ctx, batches, {.iteration = 0});
      return ctx.item(made.loss) + ctx.item(made.aux);
    };
    loss();
    Values gradients;
    for (const ParameterSlice& slice : trainer.slices())
      if (slice.parameter->name.starts_with("elastic_router."))
        gradients[slice.parameter->name] = ctx.to_vector<double>(slice.gradient);
    EXPECT_EQ(gradients.size(), 8u);
    double largest = 0;
    for (Parameter* parameter : trainer.parameters()) {
      const auto found = gradients.find(parameter->name);
      if (found == gradients.end()) continue;
      auto values = ctx.to_vector<double>(parameter->value);
      for (size_t i = 0; i < values.size(); i += 3) {
        const double kept = values[i], h = 1e-5;
        double sides[2];
        for (const int side : {0, 1}) {
          values[i] = kept + (side ? h : -h);
          ctx.kernels->copy(ctx.kernel_context(),
                            {ctx.from_vector(values, parameter->value.shape()), parameter->value});
          sides[side] = loss();
        }
        values[i] = kept;
        ctx.kernels->copy(ctx.kernel_context(),
                          {ctx.from_vector(values, parameter->value.shape()), parameter->value});
        const double factor = trainer.gradient_factor() ? ctx.item(trainer.gradient_factor()) : 1;
        EXPECT_NEAR(factor * found->second[i], (sides[1] - sides[0]) / (2 * h), 1e-7)
            << parameter->name << " " << i;
        largest = std::max(largest, std::abs(found->second[i]));
      }
    }
    EXPECT_GT(largest, 1e-3);
  }
}

// A budget's count is that of the ordinary model of the same sizes.
TEST(Elastic, BudgetsCountParameters) {
  Config config = elastic();
  config.elastic.param_budget_target = "total";
  const auto spec = elastic_spec(config);
  const double whole = static_cast<double>(parameter_count(config.model));
  for (const SubNetworkSizes sizes : {SubNetworkSizes{32, 24, 8, 4}, {24, 12, 4, 3}, {16, 24, 8, 2}}) {
    double share = 0;
    for (size_t set = 0; set < spec->terms.size(); ++set) {
      double term = spec->terms[set];
      for (size_t axis = 0; axis < kElasticAxes; ++axis)
        if ((set >> axis & 1) != 0)
          term *= static_cast<double>(sizes[axis]) / static_cast<double>(spec->widths[axis][0]);
      share += term;
    }
    EXPECT_NEAR(share * whole, static_cast<double>(parameter_count(sub_network(config.model, sizes))), 1e-6);
  }
}

// The router comes to choose what its budget asks for.
TEST(Elastic, LearnsToMeetABudget) {
  Config config = elastic();
  config.elastic.budget_list = {0.6};
  config.elastic.original_model_sample_prob = 0;
  config.elastic.hard_sample_th = 1;
  config.elastic.lr_mult_router = 10;
  config.train.train_iters = 60;
  const std::vector<std::vector<int64_t>> batches(60, batches_for(config, 1)[0]);
  const Trained run = train_layout(config, {.lr = 1e-2}, batches);
  double before = 0, after = 0;
  for (size_t i = 0; i < 15; ++i) {
    before += run.reports[i].terms[0].value;
    after += run.reports[45 + i].terms[0].value;
  }
  EXPECT_LT(after, 0.5 * before);
}

// Steps draw their budgets as often as they are asked to, noise with Gumbel's mean and deviation, and the
// schedule's temperatures.
TEST(Elastic, Draws) {
  Config config = elastic();
  config.elastic.budget_probs = {1, 3};
  config.train.train_iters = 5000;
  const auto spec = elastic_spec(config);
  int whole = 0, mixed = 0;
  double sum = 0, squares = 0, count = 0;
  for (int64_t step = 0; step < 4000; ++step) {
    const ElasticDraw draw = draw_of_step(*spec, 7, step), again = draw_of_step(*spec, 7, step);
    EXPECT_EQ(draw.noise, again.noise);
    whole += draw.budget == 1;
    mixed += draw.mixes;
    for (const double x : draw.noise) sum += x, squares += x * x, ++count;
  }
  EXPECT_NEAR(whole / 4000.0, 0.2 + 0.8 * 0.75, 0.03);
  EXPECT_NEAR(mixed / 4000.0, 0.7, 0.03);
  const double mean = sum / count;
  EXPECT_NEAR(mean, 0.57722, 0.02);
  EXPECT_NEAR(squares / count - mean * mean, 1.64493, 0.05);
  const ElasticDraw last = draw_of_step(*spec, 7, 4999), third = draw_of_step(*spec, 7, 2);
  EXPECT_NEAR(last.factor, 10, 1e-12);
  EXPECT_NEAR(1 / third.scale, 0.81, 1e-12);
  const ElasticDraw between = draw_of_budget(*spec, 0.6);
  EXPECT_NEAR(between.input[0], 0.2, 1e-12);
  EXPECT_NEAR(between.input[1], 0.8, 1e-12);
  EXPECT_EQ(draw_of_budget(*spec, 0.1).input, (std::vector<double>{0, 1}));
}

}  // namespace
}  // namespace megatron::testing
