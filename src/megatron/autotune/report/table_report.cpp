#include "megatron/autotune/report/table_report.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron::autotune {
namespace {

std::string file_name(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

// At most `width` characters, the end cut off.
std::string cut(std::string text, size_t width) {
  if (text.size() > width) text.resize(width);
  return text;
}

std::string error_line(const std::string& name, const ErrorSummary& s) {
  return fmt::format("{:<44} {:>5} {:>7.1f} {:>6.1f} {:>6.1f} {:>+6.1f}\n", cut(name, 44), s.count,
                     100 * s.median, 100 * s.p95, 100 * s.max, 100 * s.bias);
}

Json summary_json(const ErrorSummary& s) {
  Json json = Json::object();
  json["rows"] = s.count;
  json["median"] = s.median;
  json["p95"] = s.p95;
  json["max"] = s.max;
  json["mean"] = s.mean;
  json["bias"] = s.bias;
  return json;
}

Json summaries_json(const std::map<std::string, ErrorSummary>& sets) {
  Json json = Json::object();
  for (const auto& [name, summary] : sets) json[name] = summary_json(summary);
  return json;
}

std::map<std::string, std::vector<const TableRow*>> excluded_rows(const Table& table) {
  std::map<std::string, std::vector<const TableRow*>> reasons;
  for (const TableRow& row : table.rows)
    if (!row.excluded.empty()) reasons[row.excluded].push_back(&row);
  return reasons;
}

// A list of ids, filled to 80 columns.
std::string ids_text(const std::vector<const TableRow*>& rows) {
  std::string text, line = "     ";
  for (const TableRow* row : rows) {
    const std::string id = fmt::format(" {}", row->id);
    if (line.size() + id.size() > 80) {
      text += line + "\n";
      line = "     ";
    }
    line += id;
  }
  return text + line + "\n";
}

std::vector<const TableRow*> ranked_rows(const Table& table) {
  std::vector<const TableRow*> rows;
  for (const TableRow& row : table.rows)
    if (row.excluded.empty() && row.measured > 0) rows.push_back(&row);
  return rows;
}

}  // namespace

std::string predict_text(const std::string& file, const Table& table, const Evaluation& e, int draws) {
  const auto judged = std::count_if(table.rows.begin(), table.rows.end(),
                                    [](const TableRow& r) { return r.fitted && r.excluded.empty(); });
  std::string text = fmt::format("{}: {} rows priced, {} judged; {}\n", cut(file_name(file), 34),
                                 table.rows.size(), judged, table.unit);
  if (table.unknown_models + table.no_figure > 0)
    text += fmt::format("left out: {} of models without dimensions, {} without a figure\n",
                        table.unknown_models, table.no_figure);
  if (draws > 0) {
    text += fmt::format("\n{:<19} {:>7}  {:>15}  {}\n", "constant", "fit", fmt::format("in {} halves", draws),
                        "meaning");
    const std::span<const FittedConstant> free = free_constants(table);
    for (size_t i = 0; i < free.size(); ++i)
      text += fmt::format("{:<19} {:>7.3f}  {:>7.3f}-{:<7.3f}  {}\n", free[i].name,
                          e.calibration.constants.*free[i].member, e.low[i], e.high[i],
                          cut(std::string(free[i].meaning), 33));
    if (!e.calibration.layers.empty())
      text += fmt::format("and {} factors of layers that were measured, each near 1\n",
                          e.calibration.layers.size());
  }
  text += fmt::format("\n{:<44} {:>5} {:>7} {:>6} {:>6} {:>6}\n", "|predicted / measured - 1| in %", "n",
                      "median", "p95", "max", "bias");
  for (const auto& [set, summary] : e.held_out) text += error_line("held out: " + set, summary);
  for (const auto& [set, summary] : e.baseline) text += error_line("  constant MFU: " + set, summary);
  for (const auto& [set, summary] : e.shipped) text += error_line("shipped: " + set, summary);
  if (e.memory.count > 0)
    text += error_line("memory peaks", e.memory) +
            fmt::format("the lowest memory estimate is {:.1f} % below its peak\n", -100 * e.memory_lowest);
  if (draws > 0)
    text +=
        fmt::format("{:.0f} % of held-out rows lie within one stated standard deviation\n", 100 * e.inside);
  if (!table.published && e.groups > 0)
    text += fmt::format("held out: the pick of {} groups loses {:.2f} % on average, {:.1f} % at most\n",
                        e.groups, 100 * e.loss, 100 * e.worst_loss);
  if (!e.ordering.spearman.empty()) {
    text += "\norder of TFLOP/s (Spearman):";
    for (const auto& [name, value] : e.ordering.spearman) text += fmt::format(" {} {:.2f};", name, value);
    const Ordering& o = e.ordering;
    text += fmt::format("\npairs > 4 % apart in one release: {} of {} right, across precisions {} of {}\n",
                        o.same_precision.right, o.same_precision.all, o.cross_precision.right,
                        o.cross_precision.all);
  }
  if (const auto reasons = excluded_rows(table); !reasons.empty()) {
    text += "\nnot judged:\n";
    for (const auto& [reason, rows] : reasons)
      text += fmt::format("{:>4}  {}\n{}", rows.size(), cut(reason, 74), ids_text(rows));
  }
  return text;
}

std::string rows_text(const Table& table, const Calibration& given) {
  std::string text =
      fmt::format("{:>5} {:>10} {:>10} {:>7}  {}\n", "id", "predicted", "measured", "error", "configuration");
  for (const TableRow& row : table.rows) {
    const double predicted = row.predicted(given);
    text +=
        fmt::format("{:>5} {:>10.1f} {:>10} {:>7}  {}\n", row.id, predicted,
                    row.measured > 0 ? fmt::format("{:.1f}", row.measured) : "-",
                    row.measured > 0 ? fmt::format("{:+.1f} %", 100 * (predicted / row.measured - 1)) : "-",
                    cut(row.configuration, 43));
  }
  return text;
}

Json predict_json(const Table& table, const Evaluation& e, const Calibration& given, int draws) {
  Json document = Json::object();
  Json& rows = document["rows"] = Json::array();
  for (const TableRow& row : table.rows) {
    const Prediction prediction = predict(row.inputs(given), row.plan);
    const double predicted = row.predicted(given);
    Json entry = Json::object();
    entry["id"] = row.id;
    entry["predicted"] = predicted;
    entry["measured"] = row.measured > 0 ? Json(row.measured) : Json();
    entry["error"] = row.measured > 0 ? Json(predicted / row.measured - 1) : Json();
    entry["uncertainty"] = prediction.uncertainty;
    entry["unit"] = table.unit;
    entry["set"] = row.set;
    if (!row.excluded.empty()) entry["excluded"] = row.excluded;
    rows.push_back(std::move(entry));
  }
  Json& summary = document["summary"] = Json::object();
  summary["draws"] = draws;
  summary["held_out"] = summaries_json(e.held_out);
  summary["constant_mfu"] = summaries_json(e.baseline);
  summary["shipped"] = summaries_json(e.shipped);
  if (e.memory.count > 0) summary["memory"] = summary_json(e.memory);
  summary["within_uncertainty"] = e.inside;
  if (!table.published) {
    summary["held_out_loss"] = e.loss;
    summary["held_out_worst_loss"] = e.worst_loss;
  }
  if (!e.ordering.spearman.empty()) {
    Json& order = summary["ordering"] = Json::object();
    for (const auto& [name, value] : e.ordering.spearman) order["spearman " + name] = value;
    order["pairs_right"] = e.ordering.same_precision.right;
    order["pairs"] = e.ordering.same_precision.all;
    order["cross_precision_pairs_right"] = e.ordering.cross_precision.right;
    order["cross_precision_pairs"] = e.ordering.cross_precision.all;
  }
  Json& left_out = summary["not_judged"] = Json::object();
  for (const auto& [reason, members] : excluded_rows(table)) {
    Json& ids = left_out[reason] = Json::array();
    for (const TableRow* row : members) ids.push_back(row->id);
  }
  summary["fitted"] = to_json(e.calibration).at("constants");
  return document;
}

std::string rank_text(const std::string& file, const Table& table, const Evaluation& e,
                      const Calibration& given, int draws) {
  const std::vector<RankedGroup> groups = rank_groups(ranked_rows(table), given);
  std::string text = fmt::format("{}: {} groups of plans\n\n", cut(file_name(file), 50), groups.size());
  text += fmt::format("{:<42} {:>5} {:>6}  {}\n", "group", "plans", "loss%", "ids in predicted order");
  double loss = 0, worst = 0;
  for (const RankedGroup& group : groups) {
    std::string ids;
    for (const TableRow* row : group.order) {
      if (ids.size() > 16) {
        ids += " ..";
        break;
      }
      ids += fmt::format("{}{}", ids.empty() ? "" : " ", row->id);
    }
    text += fmt::format("{:<42} {:>5} {:>6.1f}  {}\n", cut(group.name, 42), group.order.size(),
                        100 * group.loss, cut(ids, 24));
    loss += group.loss;
    worst = std::max(worst, group.loss);
  }
  if (!groups.empty())
    text += fmt::format("\nthe pick loses {:.2f} % on average, {:.1f} % at most (shipped constants)\n",
                        100 * loss / static_cast<double>(groups.size()), 100 * worst);
  if (draws > 0 && e.groups > 0)
    text += fmt::format("held out, {} draws: {:.2f} % on average, {:.1f} % at most\n", draws, 100 * e.loss,
                        100 * e.worst_loss);
  return text;
}

Json rank_json(const Table& table, const Evaluation& e, const Calibration& given, int draws) {
  Json document = Json::object();
  Json& list = document["groups"] = Json::array();
  double loss = 0;
  const std::vector<RankedGroup> groups = rank_groups(ranked_rows(table), given);
  for (const RankedGroup& group : groups) {
    Json entry = Json::object();
    entry["group"] = group.name;
    Json& ids = entry["ids"] = Json::array();
    for (const TableRow* row : group.order) ids.push_back(row->id);
    entry["loss"] = group.loss;
    loss += group.loss;
    list.push_back(std::move(entry));
  }
  Json& summary = document["summary"] = Json::object();
  summary["mean_loss"] = groups.empty() ? 0.0 : loss / static_cast<double>(groups.size());
  summary["draws"] = draws;
  summary["held_out_mean_loss"] = e.loss;
  summary["held_out_worst_loss"] = e.worst_loss;
  return document;
}

}  // namespace megatron::autotune
