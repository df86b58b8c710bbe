#include "megatron/inference/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "megatron/inference/cache_size.h"
#include "megatron/inference/decode_graphs.h"
#include "megatron/inference/generate.h"
#include "megatron/inference/idle_memory.h"
#include "megatron/inference/logit_rows.h"
#include "megatron/inference/next_token.h"
#include "megatron/inference/scheduler.h"
#include "megatron/models/model_sequences.h"
#include "megatron/transformer/layer_pattern.h"

namespace megatron {
namespace {

// While there is nothing to do, the other ranks are told so this often, before their wait times out.
constexpr std::chrono::milliseconds kIdle{500};

enum Command : int64_t { kNothing, kStep, kStop, kDraft };

// Within its life, a switch of a rank's context has another value.
class SwitchScope {
 public:
  SwitchScope(bool& value, bool now) : value_(value), before_(std::exchange(value, now)) {}
  ~SwitchScope() { value_ = before_; }
  SwitchScope(const SwitchScope&) = delete;
  SwitchScope& operator=(const SwitchScope&) = delete;

 private:
  bool& value_;
  bool before_;
};

void check_options(const EngineOptions& options) {
  require(options.block_size > 0 && options.max_requests > 0 && options.max_tokens > 0,
          "engine: blocks of {} tokens, {} requests and {} tokens a step must all be positive",
          options.block_size, options.max_requests, options.max_tokens);
}

}  // namespace

struct Engine::State {
  State(RankContext& ctx, const ProcessGroup& world, Model& model, const EngineOptions& given);

  bool first() const { return world.rank() == 0; }
  // GEMMs whose rows do not depend on each other: in fp32 always, in others where asked.
  bool batch_invariant() const { return model.dtype() == DType::F32 || options.batch_invariant; }
  Command tell(Command command, std::vector<int64_t>& numbers);
  void take_in();
  bool lead();
  bool follow();
  // What MTP layers read of a turn: the request, where the turn began, and its first row in the step.
  struct Read {
    ActiveRequest* request;
    int64_t first, row;
  };
  StepOutput compute(const StepInput& input, const std::vector<Scheduler::Turn>& turns);
  std::optional<DeviceDraw> device_draw(const ActiveRequest& active) const;
  std::vector<DeviceDraw> draws_of(const std::vector<Scheduler::Turn>& turns) const;
  std::vector<Read> run_turns(const std::vector<Scheduler::Turn>& turns, const StepOutput& output);
  bool verify(const Scheduler::Turn& turn, LogitRows& rows);
  void guess(const std::vector<Read>& reads);
  bool add_token(ActiveRequest& request, LogitRows& rows);
  void end(RequestId id, FinishReason reason, RequestUpdate update = {});
  void take_experts(const std::vector<Scheduler::Turn>& turns);
  void fail_all();
  void publish_stats();

  RankContext& ctx;
  ProcessGroup world;
  Model& model;
  EngineOptions options;
  int64_t max_length = 0;
  int64_t experts_per_token = 0;  // of all layers
  std::unique_ptr<PagedCache> cache;
  std::vector<std::unique_ptr<PagedCache>> draft_caches;  // of each depth of MTP layers that guess
  std::unique_ptr<DecodeGraphs> graphs;                   // null: steps are not captured
  std::vector<float> logit_values;                        // of some rows, on the host
  std::optional<Event> begun, computed;                   // of a step on the GPU, where it is timed
  double gpu_seconds = 0;
  std::unique_ptr<Scheduler> scheduler;  // on the first rank
  int64_t prompt_tokens = 0, generated_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
  bool stopped = false;

  std::mutex mutex;  // of what follows
  std::condition_variable news;
  std::vector<std::unique_ptr<ActiveRequest>> submitted;
  std::vector<RequestId> cancelled;
  RequestId last_id = 0;
  bool stopping = false;
  EngineStats stats;
};

Engine::State::State(RankContext& ctx, const ProcessGroup& world, Model& model, const EngineOptions& given)
    : ctx(ctx), world(world), model(model), options(given) {
  check_options(options);
  require(model.can_decode(), "engine: this model under this layout reads whole sequences alone");
  if (options.speculative_tokens > 0 && carries_states(model.config()))
    throw ConfigError(
        "inference: states along the sequence cannot go back to before a draft token; leave "
        "--num-speculative-tokens out");
  if (options.fp8_cache && carries_states(model.config()))
    throw ConfigError(
        "--kv-cache-dtype fp8: states along the sequence are not kept in fp8; leave it out for this model");
  require(!options.record_routing || model.config().moe_enable_routing_replay,
          "engine: experts are recorded by a model with --moe-enable-routing-replay");
  experts_per_token = expert_layers(model.config()) * model.config().moe_router_topk;
  const CacheShapes shapes = model.cache_shapes();
  const DType kept = options.fp8_cache ? DType::F8E4M3 : model.dtype();  // of keys and values
  const CacheSize size = cache_size(ctx, world, model, options);
  options.max_requests = size.max_requests;
  max_length = size.max_length;
  cache = std::make_unique<PagedCache>(ctx, shapes, kept, size.blocks + size.spare, options.block_size,
                                       size.slots);
  if (size.spare > 0) graphs = std::make_unique<DecodeGraphs>(ctx, model, *cache, size.blocks);
  if (options.time_steps && ctx.device.is_cuda()) {
    begun.emplace(ctx.runtime, true);
    computed.emplace(ctx.runtime, true);
  }
  for (int64_t depth = 0; depth < size.depths; ++depth)
    draft_caches.push_back(std::make_unique<PagedCache>(ctx, model.draft_shapes(depth), kept, size.blocks,
                                                        options.block_size, 1));
  if (!first()) return;
  CacheLimits limits{.blocks = size.blocks, .block_size = options.block_size, .max_length = max_length};
  limits.shares_prefixes =
      !carries_states(model.config()) && !rope_depends_on_length(model.config()) && !options.record_routing;
  // Another stage's layers may have other windows, so only a model that lies here whole leaves blocks early.
  if (model.stages() == 1) {
    bool all = !shapes.empty();
    for (const auto& [layer, shape] : shapes) {
      all = all && (shape.kv_heads == 0 || shape.window >= 0);
      limits.window = std::max(limits.window, shape.window);
    }
    if (!all) limits.window = -1;
  }
  scheduler = std::make_unique<Scheduler>(options, limits);
  publish_stats();
}

// The first rank says what all do next; the others learn it.
Command Engine::State::tell(Command command, std::vector<int64_t>& numbers) {
  if (world.size() == 1) return command;
  Tensor head = ctx.from_vector(std::vector<int64_t>{command, std::ssize(numbers)}, {2});
  world.broadcast(head, 0).wait();
  const std::vector<int64_t> said = ctx.to_vector<int64_t>(head);
  world.require_running();
  if (said[1] == 0) return static_cast<Command>(said[0]);
  numbers.resize(static_cast<size_t>(said[1]));
  Tensor body = ctx.from_vector(numbers, {said[1]});
  world.broadcast(body, 0).wait();
  if (!first()) {
    numbers = ctx.to_vector<int64_t>(body);
    world.require_running();
  }
  return static_cast<Command>(said[0]);
}

void Engine::State::take_in() {
  std::vector<std::unique_ptr<ActiveRequest>> fresh;
  std::vector<RequestId> ended;
  {
    const std::lock_guard lock(mutex);
    fresh.swap(submitted);
    ended.swap(cancelled);
    stopped = stopping;
  }
  for (auto& request : fresh) {
    if (request->request.constraint) request->constraint = request->request.constraint->start();
    scheduler->add(std::move(request));
  }
  if (stopped) ended = scheduler->requests();
  for (RequestId id : ended) end(id, FinishReason::cancelled);
}

bool Engine::State::lead() {
  take_in();
  std::vector<int64_t> numbers;
  if (stopped) {
    tell(kStop, numbers);
    publish_stats();
    return false;
  }
  const std::vector<Scheduler::Turn> turns = scheduler->plan();
  if (turns.empty()) {
    tell(kNothing, numbers);
    publish_stats();
    return false;
  }
  const StepInput input = scheduler->input(turns);
  if (world.size() > 1) numbers = input.packed();
  tell(kStep, numbers);
  const SwitchScope scope(ctx.batch_invariant, batch_invariant());
  const StepOutput output = compute(input, turns);
  if (options.record_routing) take_experts(turns);
  const std::vector<Read> reads = run_turns(turns, output);
  if (!draft_caches.empty()) guess(reads);
  if (computed) {
    ctx.stream.synchronize();
    gpu_seconds = computed->seconds_since(*begun);
  }
  publish_stats();
  return true;
}

// By what the device draws a request's next token; none where the host chooses it by the logits.
std::optional<DeviceDraw> Engine::State::device_draw(const ActiveRequest& active) const {
  const std::optional<DeviceDraw> draw =
      draws_freely(active) ? active.sampler.device_draw() : std::optional<DeviceDraw>();
  const bool can_sample = model.dtype() != DType::F64 && model.config().vocab_size <= kMaxSampledTokens;
  return draw && (can_sample || (*draw)[kSampleTemperature] == 0) ? draw : std::nullopt;
}

// Those of all turns; empty where all take the likeliest token, or the host chooses.
std::vector<DeviceDraw> Engine::State::draws_of(const std::vector<Scheduler::Turn>& turns) const {
  std::vector<DeviceDraw> draws;
  for (const Scheduler::Turn& turn : turns)
    draws.push_back(device_draw(*turn.request).value_or(DeviceDraw{}));
  const auto samples = [](const DeviceDraw& draw) { return draw[kSampleTemperature] > 0; };
  return std::ranges::any_of(draws, samples) ? draws : std::vector<DeviceDraw>();
}

StepOutput Engine::State::compute(const StepInput& input, const std::vector<Scheduler::Turn>& turns) {
  // A step begins with copies from the host, behind which whatever wrote weights is done. Other ranks' work
  // comes by streams and events of its own.
  const SwitchScope pdl(ctx.pdl, ctx.device.is_cuda() && world.size() == 1);
  if (begun) begun->record(ctx.stream);
  StepOutput output = graphs && graphs->takes(input) ? graphs->run(input, draws_of(turns))
                                                     : StepOutput{model.decode(ctx, input, *cache)};
  if (computed) computed->record(ctx.stream);
  return output;
}

bool Engine::State::follow() {
  std::vector<int64_t> numbers;
  const Command command = tell(kNothing, numbers);
  stopped = command == kStop;
  if (command != kStep) return false;
  const SwitchScope scope(ctx.batch_invariant, batch_invariant());
  model.decode(ctx, StepInput::unpacked(numbers), *cache);
  numbers.clear();
  if (!draft_caches.empty() && tell(kNothing, numbers) == kDraft)
    model.draft(ctx, DraftInput::unpacked(numbers), draft_caches);
  return true;
}

// Keeps what routers chose for the tokens of a step. A guess that is not accepted is overwritten by the token
// that is read at its place, or cut off.
void Engine::State::take_experts(const std::vector<Scheduler::Turn>& turns) {
  const Tensor& chosen = model.routed_experts();
  const auto each = static_cast<size_t>(experts_per_token);
  const std::vector<int64_t> values = ctx.to_vector<int64_t>(chosen);
  world.require_running();
  auto from = values.begin();
  for (const Scheduler::Turn& turn : turns) {
    const auto count = static_cast<size_t>(turn.tokens + turn.drafted) * each;
    std::vector<int32_t>& experts = turn.request->experts;
    experts.resize(static_cast<size_t>(turn.request->computed) * each);
    experts.insert(experts.end(), from, from + static_cast<int64_t>(count));
    from += static_cast<int64_t>(count);
  }
}

std::vector<Engine::State::Read> Engine::State::run_turns(const std::vector<Scheduler::Turn>& turns,
                                                          const StepOutput& output) {
  LogitRows rows(ctx, world, output, logit_values);
  std::vector<Read> reads;
  int64_t row = 0;
  for (const Scheduler::Turn& turn : turns) {
    ActiveRequest& request = *turn.request;
    const bool reads_prompt = request.wants_prompt_logprobs();
    const int64_t begin = request.computed;
    scheduler->finish_turn(turn);
    prompt_tokens += std::max<int64_t>(0, std::min(request.computed, request.prompt_length()) - begin);
    const bool ready = request.computed == request.length();
    if (reads_prompt)
      for (int64_t at = begin + 1; at < begin + turn.tokens + !ready; ++at)
        request.prompt.push_back(log_probabilities(rows.next(), request.request.sampling,
                                                   request.text[static_cast<size_t>(at)],
                                                   request.request.prompt_logprobs));
    if (!ready || verify(turn, rows)) reads.push_back({&request, begin, row});
    row += turn.tokens + turn.drafted;
  }
  return reads;
}

// Chooses the token behind a text. Where that is the first of the draft, the model has read it already, and
// the next row says what follows; and so on. A request draws each token by its place in the answer, so these
// are the tokens that it would have got one by one. False: the request has ended.
bool Engine::State::verify(const Scheduler::Turn& turn, LogitRows& rows) {
  ActiveRequest& request = *turn.request;
  const std::vector<int64_t> draft = std::exchange(request.draft, {});
  drafted_tokens += turn.drafted;
  bool goes_on = add_token(request, rows);
  int64_t accepted = 0;
  for (; goes_on && accepted < turn.drafted; ++accepted) {
    if (request.text.back() != draft[static_cast<size_t>(accepted)]) break;
    scheduler->accept_draft(request);
    goes_on = add_token(request, rows);
  }
  accepted_tokens += accepted;
  rows.skip(turn.drafted - accepted);
  if (goes_on && options.speculative_tokens > 0 && draft_caches.empty())
    request.draft = request.ngrams.propose(request.text, options.speculative_tokens);
  return goes_on;
}

// MTP layers read what the step has read and the tokens that follow, and guess behind texts that go on.
void Engine::State::guess(const std::vector<Read>& reads) {
  DraftInput input;
  std::vector<ActiveRequest*> wanting;
  for (const auto& [request, first, row] : reads) {
    const auto behind = request->text.begin() + request->computed + 1;
    const bool ready = behind == request->text.end();
    StepInput::Sequence& sequence = input.step.sequences.emplace_back();
    sequence.tokens = {request->text.begin() + first + 1, behind};
    sequence.first = first;
    sequence.logits = ready ? 1 : 0;
    sequence.prompt = request->prompt_length();
    for (int64_t block : request->blocks) sequence.blocks.push_back(std::max<int64_t>(0, block));
    input.rows.push_back(row);
    const int64_t further = std::min(std::ssize(draft_caches) - 1, request->text.end() - behind);
    input.known.emplace_back(behind, behind + further);
    if (ready) wanting.push_back(request);
  }
  std::vector<int64_t> numbers;
  if (world.size() > 1 && !reads.empty()) numbers = input.packed();
  tell(reads.empty() ? kNothing : kDraft, numbers);
  if (reads.empty()) return;
  const std::vector<std::vector<int64_t>> guesses = model.draft(ctx, input, draft_caches);
  world.require_running();
  for (size_t i = 0; i < wanting.size(); ++i)
    for (const std::vector<int64_t>& guess : guesses) wanting[i]->draft.push_back(guess[i]);
}

// By the next row. False: it was the last.
bool Engine::State::add_token(ActiveRequest& active, LogitRows& rows) {
  RequestUpdate update{.prompt = {}, .tokens = {}, .cached_tokens = active.cached_tokens, .finish = {}};
  if (!active.prompt_told) update.prompt = std::move(active.prompt);
  active.prompt_told = true;
  const Request& request = active.request;
  if (request.max_tokens == 0) {
    rows.skip(1);
    return end(active.id, FinishReason::length, std::move(update)), false;
  }
  const std::optional<DeviceDraw> draw = device_draw(active);
  const std::optional<int64_t> drawn = draw ? rows.next_drawn(*draw) : std::nullopt;
  const std::span<float> logits = drawn ? std::span<float>() : rows.next();
  std::optional<TokenChoice> chosen;
  try {
    require(drawn.value_or(0) >= 0, "sampling: no token can be chosen; the model's output is not finite");
    chosen = drawn ? TokenChoice{.id = *drawn} : choose_token(active, logits);
  } catch (const Error&) {  // no token is left, or a logit is NaN: the others go on
    return end(active.id, FinishReason::failed, std::move(update)), false;
  }
  if (!chosen) return end(active.id, FinishReason::end_token, std::move(update)), false;
  TokenChoice& choice = *chosen;
  const int64_t token = choice.id;
  active.text.push_back(token);
  active.sampler.push(token);
  if (active.constraint) active.constraint->advance(token);
  ++generated_tokens;
  update.tokens.push_back(std::move(choice));
  if (std::ranges::find(request.end_tokens, token) != request.end_tokens.end())
    return end(active.id, FinishReason::end_token, std::move(update)), false;
  if ((update.stop_tokens = stop_length(active)) > 0)
    return end(active.id, FinishReason::end_token, std::move(update)), false;
  if (active.generated() >= request.max_tokens || active.length() > max_length)
    return end(active.id, FinishReason::length, std::move(update)), false;
  if (active.listener) active.listener(update);
  return true;
}

void Engine::State::end(RequestId id, FinishReason reason, RequestUpdate update) {
  const std::unique_ptr<ActiveRequest> request = scheduler->remove(id);
  if (!request || !request->listener) return;
  update.finish = reason;
  update.experts = std::move(request->experts);
  // The last token is not read where it was just chosen, nor is what was guessed behind it part of the text.
  const bool whole = update.tokens.empty() && reason != FinishReason::cancelled;
  const auto read = static_cast<size_t>((request->length() - (whole ? 0 : 1)) * experts_per_token);
  if (update.experts.size() > read) update.experts.resize(read);
  request->listener(update);
}

void Engine::State::fail_all() {
  std::vector<std::unique_ptr<ActiveRequest>> waiting;
  {
    const std::lock_guard lock(mutex);
    stopping = true;  // nobody would answer what comes now
    waiting.swap(submitted);
  }
  for (RequestId id : scheduler->requests()) end(id, FinishReason::failed);
  for (const auto& request : waiting)
    if (request->listener) request->listener({.finish = FinishReason::failed});
}

void Engine::State::publish_stats() {
  EngineStats now;
  scheduler->count(now);
  now.prompt_tokens = prompt_tokens;
  now.generated_tokens = generated_tokens;
  now.drafted_tokens = drafted_tokens;
  now.accepted_tokens = accepted_tokens;
  now.gpu_seconds = gpu_seconds;
  if (graphs) {
    now.cuda_graphs = graphs->count();
    now.graph_bytes = graphs->bytes();
    now.graph_fault = graphs->fault();
  }
  const std::lock_guard lock(mutex);
  now.waiting += std::ssize(submitted);
  stats = now;
}

Engine::Engine(RankContext& ctx, const ProcessGroup& world, Model& model, const EngineOptions& options)
    : state_(std::make_unique<State>(ctx, world, model, options)) {}
Engine::~Engine() = default;

const EngineOptions& Engine::options() const { return state_->options; }
int64_t Engine::max_length() const { return state_->max_length; }
int64_t Engine::vocab_size() const { return state_->model.config().vocab_size; }

RequestId Engine::submit(Request request, RequestListener listener) {
  require(state_->first(), "engine: requests are given to the first rank");
  const int64_t vocabulary = vocab_size(), length = std::ssize(request.prompt);
  if (length == 0) throw ConfigError("request: the prompt is empty; give at least one token");
  for (int64_t id : request.prompt)
    if (id < 0 || id >= vocabulary)
      throw ConfigError(fmt::format("request: token {} is not in the vocabulary of {}", id, vocabulary));
  if (length > max_length())
    throw ConfigError(fmt::format("request: the prompt has {} tokens, {} can be read at most; shorten it",
                                  length, max_length()));
  state_->model.check_text(request.prompt);
  if (request.max_tokens < 0)
    throw ConfigError(
        fmt::format("request: {} tokens cannot be generated; give 0 or more", request.max_tokens));
  request.sampling.logprobs = state_->options.logprobs;
  auto active = std::make_unique<ActiveRequest>(std::move(request), std::move(listener));
  const std::lock_guard lock(state_->mutex);
  require(!state_->stopping, "engine: it was stopped and takes no further requests");
  const RequestId id = active->id = ++state_->last_id;
  state_->submitted.push_back(std::move(active));
  ++state_->stats.waiting;
  state_->news.notify_all();
  return id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled.push_back(id);
  state_->news.notify_all();
}

bool Engine::step() {
  if (!state_->first()) return state_->follow();
  try {
    return state_->lead();
  } catch (...) {
    state_->fail_all();
    throw;
  }
}

void Engine::weights_changed() {
  if (state_->graphs) state_->graphs->forget();
  if (state_->first()) state_->scheduler->forget();
}

void Engine::run() {
  IdleMemory memory(state_->ctx, state_->options.idle_bytes);
  while (!state_->stopped) {
    const bool stepped = step();
    memory.look(stepped);
    if (stepped || !state_->first() || state_->stopped) continue;
    std::unique_lock lock(state_->mutex);
    state_->news.wait_for(lock, kIdle, [&] {
      return state_->stopping || !state_->submitted.empty() || !state_->cancelled.empty();
    });
  }
}

void Engine::stop() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->news.notify_all();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace megatron
