#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

// Few rows that together hold every possible combination of any two (or three) settings.
namespace megatron::testing {

struct Factor {
  std::string name;
  std::vector<std::string> levels;
};

using DesignRow = std::vector<int>;  // the level of each factor; −1: open

// Which rows there can be: asked as soon as the factors that it looks at have their levels.
struct DesignRule {
  std::vector<size_t> factors;
  std::function<bool(const DesignRow&)> allows;
};

class CoveringDesign {
 public:
  CoveringDesign(std::vector<Factor> factors, std::vector<DesignRule> rules)
      : factors_(std::move(factors)), rules_(std::move(rules)), rules_of_(factors_.size()) {
    for (const DesignRule& rule : rules_)
      for (size_t factor : rule.factors) rules_of_[factor].push_back(&rule);
  }

  const std::vector<Factor>& factors() const { return factors_; }

  // Whether the open factors can be given levels.
  bool possible(DesignRow row) const {
    for (const DesignRule& rule : rules_)
      if (!allowed(rule, row)) return false;
    return complete(row, 0);
  }

  // Calls fn with a row that has just `strength` levels, for every combination of them.
  void combinations(size_t strength, const std::function<void(const DesignRow&)>& fn) const {
    DesignRow row(factors_.size(), -1);
    choose(row, 0, strength, fn);
  }

  // Greedily: each row starts from a combination that is still missing and takes, factor by factor, the level
  // that adds the most of those.
  std::vector<DesignRow> rows(size_t strength) const {
    std::set<uint64_t> missing;
    std::vector<DesignRow> seeds, result;
    combinations(strength, [&](const DesignRow& part) {
      if (!possible(part)) return;
      missing.insert(key(part));
      seeds.push_back(part);
    });
    for (const DesignRow& seed : seeds) {
      if (!missing.count(key(seed))) continue;
      result.push_back(extended(seed, strength, missing));
      each_part(result.back(), strength, [&](const DesignRow& part) { missing.erase(key(part)); });
    }
    return result;
  }

  // The combinations of a row, each with just `strength` levels.
  void each_part(const DesignRow& row, size_t strength,
                 const std::function<void(const DesignRow&)>& fn) const {
    DesignRow part(row.size(), -1);
    take(row, part, 0, strength, fn);
  }

  uint64_t key(const DesignRow& part) const {
    uint64_t key = 0;
    for (size_t factor = 0; factor < part.size(); ++factor)
      key = key * (factors_[factor].levels.size() + 1) + static_cast<uint64_t>(part[factor] + 1);
    return key;
  }

  std::string text(const DesignRow& row) const {
    std::string text;
    for (size_t factor = 0; factor < row.size(); ++factor)
      if (row[factor] >= 0)
        text += (text.empty() ? "" : ", ") + factors_[factor].name + " " +
                factors_[factor].levels[static_cast<size_t>(row[factor])];
    return text;
  }

 private:
  static bool allowed(const DesignRule& rule, const DesignRow& row) {
    for (size_t factor : rule.factors)
      if (row[factor] < 0) return true;
    return rule.allows(row);
  }

  bool complete(DesignRow& row, size_t factor) const {
    while (factor < row.size() && row[factor] >= 0) ++factor;
    if (factor == row.size()) return true;
    for (int level = 0; level < levels(factor); ++level) {
      row[factor] = level;
      bool fits = true;
      for (const DesignRule* rule : rules_of_[factor]) fits = fits && allowed(*rule, row);
      if (fits && complete(row, factor + 1)) return true;
    }
    row[factor] = -1;
    return false;
  }

  void choose(DesignRow& row, size_t first, size_t strength,
              const std::function<void(const DesignRow&)>& fn) const {
    if (strength == 0) return fn(row);
    for (size_t factor = first; factor + strength <= row.size(); ++factor)
      for (int level = 0; level < levels(factor); ++level) {
        row[factor] = level;
        choose(row, factor + 1, strength - 1, fn);
        row[factor] = -1;
      }
  }

  static void take(const DesignRow& row, DesignRow& part, size_t first, size_t strength,
                   const std::function<void(const DesignRow&)>& fn) {
    if (strength == 0) return fn(part);
    for (size_t factor = first; factor + strength <= row.size(); ++factor) {
      if (row[factor] < 0) continue;
      part[factor] = row[factor];
      take(row, part, factor + 1, strength - 1, fn);
      part[factor] = -1;
    }
  }

  DesignRow extended(DesignRow row, size_t strength, const std::set<uint64_t>& missing) const {
    for (size_t factor = 0; factor < row.size(); ++factor) {
      if (row[factor] >= 0) continue;
      int best = -1, most = -1;
      for (int turn = 0; turn < levels(factor); ++turn) {
        // Among equals another one each time.
        int level = (turn + static_cast<int>(missing.size())) % levels(factor);
        row[factor] = level;
        if (!possible(row)) continue;
        int gain = 0;
        DesignRow part(row.size(), -1), others = row;
        part[factor] = level;
        others[factor] = -1;
        take(others, part, 0, strength - 1,
             [&](const DesignRow& with) { gain += static_cast<int>(missing.count(key(with))); });
        if (gain > most) {
          most = gain;
          best = level;
        }
      }
      row[factor] = best;
    }
    return row;
  }

  int levels(size_t factor) const { return static_cast<int>(factors_[factor].levels.size()); }

  std::vector<Factor> factors_;
  std::vector<DesignRule> rules_;
  std::vector<std::vector<const DesignRule*>> rules_of_;
};

}  // namespace megatron::testing
