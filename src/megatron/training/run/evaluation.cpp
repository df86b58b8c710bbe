#include "megatron/training/run/evaluation.h"

#include "megatron/models/parallel_setup.h"
#include "megatron/training/run/agreement.h"

namespace megatron {

bool Evaluation::is_due(int64_t iteration) const {
  const ValidationConfig& validation = run_.config.validation;
  return validation.eval_interval > 0 && iteration % validation.eval_interval == 0 &&
         iteration >= validation.start_eval_at_iter;
}

void Evaluation::validate(LiveData* live) {
  const ValidationConfig& validation = run_.config.validation;
  TrainState& state = announcer_.view().state;
  if (live) {
    announcer_.announce(RunEvent::eval_start);
    const EvaluationReport report{
        .set = "validation", .iteration = state.iteration, .terms = live->evaluate()};
    announcer_.view().evaluation = &report;
    announcer_.announce(RunEvent::eval_end);
    announcer_.view().evaluation = nullptr;
    validated_ = state.iteration;
    return;
  }
  const int64_t batch = evaluation_batch(run_.config);
  for (const NamedSource& set : run_.data.validation) {
    const int64_t samples = set.source->samples();  // -1: endless
    const bool full = validation.full_validation && samples >= 0;
    const int64_t rounds = full ? samples / batch : validation.eval_iters;
    if (full && rounds == 0)
      announcer_.tell(fmt::format("{}: its {} samples do not fill a batch of {}, so it is not evaluated",
                                  set.name, samples, batch));
    // A run that was done, and is started again, evaluates once more than its data was made for.
    const bool anew = full || (samples >= 0 && state.validated_samples + rounds * batch > samples);
    if (rounds > 0 &&
        !evaluate(set, rounds, anew ? 0 : state.validated_samples, RunEvent::eval_start, RunEvent::eval_end))
      return;
  }
  state.validated_samples += validation.eval_iters * batch;
  validated_ = state.iteration;
}

void Evaluation::finish(LiveData* live) {
  const ValidationConfig& validation = run_.config.validation;
  if (validation.eval_interval == 0) return;
  if (validated_ != announcer_.view().state.iteration) validate(live);
  if (run_.data.test && validation.eval_iters > 0)
    evaluate({"test", run_.data.test}, validation.eval_iters, 0, RunEvent::test_start, RunEvent::test_end);
}

// The mean loss of `rounds` batches from sample `begin` on; false where a signal came.
bool Evaluation::evaluate(const NamedSource& set, int64_t rounds, int64_t begin, RunEvent start,
                          RunEvent end) {
  RunView& view = announcer_.view();
  announcer_.announce(start);
  const int64_t micro = run_.config.validation.eval_micro_batch_size;
  const Shares shares = batch_shares(run_.config, parallel_, evaluation_batch(run_.config),
                                     micro > 0 ? micro : run_.config.train.micro_batch_size);
  const std::vector<Share>& own = shares.of_replica[static_cast<size_t>(parallel_.replica())];
  EvaluationReport report{.set = set.name, .iteration = view.state.iteration, .batches = rounds};
  for (int64_t i = 0; i < rounds; ++i) {
    if (interrupted()) {
      announcer_.tell("the evaluation is given up: a signal came");
      return false;
    }
    const auto batches = set.source->step({i, begin + i * shares.samples(), own});
    report.loss += view.trainer.evaluate(view.ctx, batches, shares.batches()) / static_cast<double>(rounds);
  }
  view.evaluation = &report;
  announcer_.announce(end);
  view.evaluation = nullptr;
  return true;
}

// Whether a signal has reached some rank: an evaluation may be long.
bool Evaluation::interrupted() const {
  if (!run_.interruption) return false;
  const RunView& view = announcer_.view();
  return all_reduce_max(view.ctx, view.world, {static_cast<double>(run_.interruption->signal())})[0] > 0;
}

}  // namespace megatron
