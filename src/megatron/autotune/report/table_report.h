#pragma once

#include <string>

#include "megatron/autotune/fit/evaluate.h"

namespace megatron::autotune {

// What `autotune predict --table` prints, in 80 columns: constants, errors by set, rows that are not judged
// and why.
std::string predict_text(const std::string& file, const Table& table, const Evaluation& evaluation,
                         int draws);
// The same for programs: rows of id, predicted, measured and error with `given`, and a summary.
Json predict_json(const Table& table, const Evaluation& evaluation, const Calibration& given, int draws);
// One line a row: id, figures, error, plan.
std::string rows_text(const Table& table, const Calibration& given);

// What `autotune rank --table` prints: groups of plans in predicted order and the loss of each first one.
std::string rank_text(const std::string& file, const Table& table, const Evaluation& evaluation,
                      const Calibration& given, int draws);
Json rank_json(const Table& table, const Evaluation& evaluation, const Calibration& given, int draws);

}  // namespace megatron::autotune
