#pragma once

#include "megatron/models/elastic/elastic_spec.h"

namespace megatron {

// What a step trains: all of its micro-batches the same, on every rank.
struct ElasticDraw {
  double budget = 1;
  std::vector<double> input;  // of the router, by budget
  std::vector<double> noise;  // Gumbel's, by choice
  bool mixes = false;         // widths; else one is taken whole
  double scale = 1;           // of logits, noise included: 1 / temperature
  double factor = 1;          // of logits alone
};

ElasticDraw draw_of_step(const ElasticSpec& spec, uint64_t seed, int64_t iteration);

// What is evaluated: the choice that is most likely at the budget.
ElasticDraw draw_of_budget(const ElasticSpec& spec, double budget);

}  // namespace megatron
