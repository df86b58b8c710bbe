#include "megatron/inference/constraint/regex_grammar.h"

#include <algorithm>
#include <map>
#include <string>

#include "megatron/base/refuse.h"
#include "megatron/tokenizers/regex/char_set.h"
#include "megatron/tokenizers/unicode/utf8.h"

namespace megatron {
namespace {

using Points = Grammar::Points;
constexpr char32_t kLast = 0x10FFFF;

Points inverted(const Points& points) {
  Points rest;
  char32_t next = 0;
  for (auto [first, last] : normal_points(points)) {
    if (first > next) rest.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) rest.emplace_back(next, kLast);
  return rest;
}

Points property(std::string_view name) {
  const tokenizers::CharSet set = tokenizers::CharSet::property(name);
  Points points;
  for (char32_t point = 0; point <= kLast; ++point) {
    if (!set.contains(point)) continue;
    if (!points.empty() && points.back().second + 1 == point)
      points.back().second = point;
    else
      points.emplace_back(point, point);
  }
  return points;
}

// A regular expression as a tree, so that a repeated part can be made several times.
struct Tree {
  enum class Kind { characters, sequence, alternatives, repeat, begin, end } kind;
  Points points;
  std::vector<Tree> parts;
  int64_t min = 0, max = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  Tree parse() {
    Tree tree = alternatives(0);
    require_input(rest_.empty(), "regular expression '{}': ')' without '('", pattern_);
    return tree;
  }

 private:
  static constexpr int kMaxNesting = 100;
  static constexpr int64_t kMaxRepeat = 10000;

  [[noreturn]] void unknown(std::string_view what) const {
    refuse("regular expression '{}': {} is not supported; write it without", pattern_, what);
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  char32_t take_point() {
    require_input(!rest_.empty(), "regular expression '{}': it ends too early", pattern_);
    const auto next = tokenizers::decode_utf8(rest_);
    require_input(next.valid, "regular expression: malformed UTF-8");
    rest_.remove_prefix(next.length);
    return next.point;
  }

  Tree alternatives(int depth) {
    require_input(depth < kMaxNesting, "regular expression: groups are nested deeper than {}", kMaxNesting);
    Tree tree{Tree::Kind::alternatives, {}, {}};
    do tree.parts.push_back(sequence(depth));
    while (take("|"));
    if (tree.parts.size() == 1) return Tree(std::move(tree.parts[0]));
    return tree;
  }

  Tree sequence(int depth) {
    Tree tree{Tree::Kind::sequence, {}, {}};
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') tree.parts.push_back(quantified(depth));
    return tree;
  }

  Tree quantified(int depth) {
    Tree tree = atom(depth);
    while (true) {
      int64_t min = 0, max = -1;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (!bounds(min, max)) {
        return tree;
      }
      if (take("+")) unknown("a possessive quantifier");
      take("?");  // lazy: the same texts
      require_input(tree.kind != Tree::Kind::begin && tree.kind != Tree::Kind::end,
                    "regular expression '{}': an anchor is repeated", pattern_);
      Tree repeat{Tree::Kind::repeat, {}, {}, min, max};
      repeat.parts.push_back(std::move(tree));
      tree = std::move(repeat);
    }
  }

  // {2}, {2,}, {,3}, {2,3}; anything else is literal text, as usual.
  bool bounds(int64_t& min, int64_t& max) {
    if (rest_.empty() || rest_[0] != '{') return false;
    size_t at = 1;
    const auto number = [&](int64_t& value) {
      const size_t begin = at;
      value = 0;
      for (; at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '9'; ++at)
        value = std::min<int64_t>(value * 10 + (rest_[at] - '0'), kMaxRepeat + 1);
      return at > begin;
    };
    const bool has_min = number(min);
    bool has_max = false;
    const bool comma = at < rest_.size() && rest_[at] == ',';
    if (comma) {
      ++at;
      has_max = number(max);
    }
    if (at >= rest_.size() || rest_[at] != '}' || (!has_min && !has_max)) return false;
    rest_.remove_prefix(at + 1);
    if (!comma) max = min;
    if (comma && !has_max) max = -1;
    require_input(min <= kMaxRepeat && max <= kMaxRepeat, "regular expression '{}': more than {} repetitions",
                  pattern_, kMaxRepeat);
    require_input(max < 0 || min <= max, "regular expression '{}': {{{},{}}} is the wrong way round",
                  pattern_, min, max);
    return true;
  }

  static Tree characters(Points points) { return {Tree::Kind::characters, std::move(points), {}}; }

  Tree atom(int depth) {
    if (take("(")) {
      if (take("?")) {
        if (take("=") || take("!") || rest_.starts_with("<=") || rest_.starts_with("<!"))
          unknown("look-around");
        if (take("P<") || take("<")) {
          const size_t end = rest_.find('>');
          require_input(end != std::string_view::npos, "regular expression '{}': a group's name has no end",
                        pattern_);
          rest_.remove_prefix(end + 1);
        } else if (!take(":")) {
          unknown("a group with '(?" + std::string(rest_.substr(0, 1)) + "'");
        }
      }
      Tree tree = alternatives(depth + 1);
      require_input(take(")"), "regular expression '{}': '(' without ')'", pattern_);
      return tree;
    }
    if (take("[")) return characters(set());
    if (take(".")) return characters(inverted({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    if (take("^") || take("\\A")) return {Tree::Kind::begin, {}, {}};
    if (take("$") || take("\\Z") || take("\\z")) return {Tree::Kind::end, {}, {}};
    if (rest_.starts_with("*") || rest_.starts_with("+") || rest_.starts_with("?"))
      refuse("regular expression '{}': '{}' repeats nothing", pattern_, rest_[0]);
    if (take("\\")) return characters(escape());
    const char32_t point = take_point();
    return characters({{point, point}});
  }

  Points escape() {
    const char32_t c = take_point();
    switch (c) {
      case 'd':
        return {{'0', '9'}};
      case 'w':
        return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
      case 's':
        return {{'\t', '\r'}, {' ', ' '}};
      // What no engine takes for a digit, a word character or a space, whether it knows ASCII alone or
      // Unicode.
      case 'D':
        return without({"N"}, {{'0', '9'}});
      case 'W':
        return without({"L", "N", "M", "Pc"}, {{'_', '_'}});
      case 'S':
        return without({"Z"}, {{'\t', '\r'}, {0x1C, 0x1F}, {0x85, 0x85}});
      case 'n':
        return {{'\n', '\n'}};
      case 't':
        return {{'\t', '\t'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case '0':
        return {{0, 0}};
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'p':
      case 'P':
        return by_property(c == 'P');
      case 'b':
      case 'B':
        unknown("a word boundary");
      default:
        break;
    }
    if (c >= '1' && c <= '9') unknown("a back-reference");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) unknown(std::string("\\") + static_cast<char>(c));
    return {{c, c}};
  }

  const Points& named(const std::string& name) {
    auto found = properties_.find(name);
    if (found == properties_.end()) found = properties_.emplace(name, property(name)).first;
    return found->second;
  }

  Points without(std::initializer_list<const char*> names, Points points) {
    for (const char* name : names) points.insert(points.end(), named(name).begin(), named(name).end());
    return inverted(points);
  }

  Points hex(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = take_point();
      const bool small = c >= 'a' && c <= 'f', large = c >= 'A' && c <= 'F';
      require_input((c >= '0' && c <= '9') || small || large,
                    "regular expression '{}': {} hexadecimal digits expected", pattern_, digits);
      value = value * 16 + (small ? c - 'a' + 10 : large ? c - 'A' + 10 : c - '0');
    }
    return {{value, value}};
  }

  Points by_property(bool inverts) {
    const size_t end = rest_.find('}');
    require_input(rest_.starts_with("{") && end != std::string_view::npos,
                  "regular expression '{}': \\p without {{name}}", pattern_);
    const std::string name(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    const Points points = refuse_faults("regular expression", [&] { return named(name); });
    return inverts ? inverted(points) : points;
  }

  Points set() {
    const bool inverts = take("^");
    Points points;
    for (bool first = true; first || !rest_.starts_with("]"); first = false) {
      require_input(!rest_.empty(), "regular expression '{}': '[' without ']'", pattern_);
      if (rest_.starts_with("[:")) unknown("[:class:]");
      const bool escaped = take("\\");
      if (escaped && take("b")) {
        points.emplace_back('\b', '\b');
        continue;
      }
      Points own = escaped ? escape() : Points{{take_point(), 0}};
      if (!escaped) own[0].second = own[0].first;
      const bool single = own.size() == 1 && own[0].first == own[0].second;
      if (single && rest_.starts_with("-") && rest_.size() > 1 && rest_[1] != ']') {
        take("-");
        const Points last = take("\\") ? escape() : Points{{take_point(), 0}};
        require_input(last[0].first >= own[0].first,
                      "regular expression '{}': a range is the wrong way round", pattern_);
        own[0].second = last[0].first;
      }
      points.insert(points.end(), own.begin(), own.end());
    }
    take("]");
    points = inverts ? inverted(points) : normal_points(points);
    require_input(!points.empty(), "regular expression '{}': a class has no character", pattern_);
    return points;
  }

  std::string_view pattern_, rest_;
  std::map<std::string, Points> properties_;
};

bool is_anchor(const Tree& tree) { return tree.kind == Tree::Kind::begin || tree.kind == Tree::Kind::end; }

class Writer {
 public:
  Writer(Grammar& grammar, const WriteCharacter& write, std::string_view pattern, bool search)
      : grammar_(grammar), write_(write), pattern_(pattern), search_(search) {}

  // At the edges of the text anchors say whether other text may stand there.
  Grammar::Part whole(const Tree& tree) {
    if (tree.kind == Tree::Kind::alternatives) {
      std::vector<Grammar::Part> parts;
      for (const Tree& part : tree.parts) parts.push_back(whole(part));
      return grammar_.alternatives(parts);
    }
    // (…) around everything is the same as what is in it.
    if (tree.kind == Tree::Kind::sequence && tree.parts.size() == 1 &&
        (tree.parts[0].kind == Tree::Kind::alternatives || tree.parts[0].kind == Tree::Kind::sequence))
      return whole(tree.parts[0]);
    std::vector<Tree> parts = tree.kind == Tree::Kind::sequence ? tree.parts : std::vector<Tree>{tree};
    const bool begins = !parts.empty() && parts.front().kind == Tree::Kind::begin;
    if (begins) parts.erase(parts.begin());
    const bool ends = !parts.empty() && parts.back().kind == Tree::Kind::end;
    if (ends) parts.pop_back();
    std::vector<Grammar::Part> written;
    if (search_ && !begins) written.push_back(anything());
    for (const Tree& part : parts) written.push_back(inner(part));
    if (search_ && !ends) written.push_back(anything());
    return grammar_.sequence(written);
  }

 private:
  Grammar::Part anything() {
    return grammar_.repeat(0, -1, [&] { return write_({{0, kLast}}); });
  }

  Grammar::Part inner(const Tree& tree) {
    require_input(!is_anchor(tree),
                  "regular expression '{}': an anchor within it is not supported; put ^ and $ at "
                  "its ends",
                  pattern_);
    switch (tree.kind) {
      case Tree::Kind::characters:
        return write_(tree.points);
      case Tree::Kind::repeat:
        return grammar_.repeat(tree.min, tree.max, [&] { return inner(tree.parts[0]); });
      case Tree::Kind::alternatives: {
        std::vector<Grammar::Part> parts;
        for (const Tree& part : tree.parts) parts.push_back(inner(part));
        return grammar_.alternatives(parts);
      }
      default: {
        std::vector<Grammar::Part> parts;
        for (const Tree& part : tree.parts) parts.push_back(inner(part));
        return grammar_.sequence(parts);
      }
    }
  }

  Grammar& grammar_;
  const WriteCharacter& write_;
  std::string_view pattern_;
  bool search_;
};

}  // namespace

Grammar::Part regex_part(Grammar& grammar, std::string_view pattern, const WriteCharacter& write,
                         bool search) {
  const Tree tree = Parser(pattern).parse();
  return Writer(grammar, write, pattern, search).whole(tree);
}

}  // namespace megatron
