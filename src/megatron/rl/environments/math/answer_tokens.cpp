#include "megatron/rl/environments/math/answer_tokens.h"

#include <algorithm>
#include <array>
#include <utility>

#include "megatron/base/error.h"

namespace megatron::rl {
namespace {

using Kind = AnswerToken::Kind;
using Words = std::pair<std::string_view, std::string_view>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

template <class List>
bool is_in(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

constexpr std::array<std::string_view, 25> kFunctions = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln",
    "log", "lg",  "exp", "max", "min", "gcd", "lcm",    "asin",   "acos",   "atan", "arg",  "det"};

// Words that LaTeX sets apart from what they act on, and say nothing here.
constexpr std::array<std::string_view, 31> kPassedOver = {
    "left",    "right",     "big",          "Big",       "bigg",      "Bigg",     "bigl",       "bigr",
    "Bigl",    "Bigr",      "biggl",        "biggr",     "Biggl",     "Biggr",    "quad",       "qquad",
    "hline",   "limits",    "displaystyle", "textstyle", "thinspace", "medspace", "thickspace", "space",
    "enspace", "mathstrut", "phantom",      "bf",        "rm",        "it",       "nolimits"};

constexpr std::array<std::string_view, 17> kTextCommands = {
    "text",   "textbf", "textit", "textrm", "texttt", "textsf",  "mbox",         "hbox",      "mathrm",
    "mathbf", "mathit", "mathsf", "mathtt", "mathbb", "mathcal", "operatorname", "boldsymbol"};

// Written by one of the first words, read as the sign behind it.
constexpr std::array<Words, 34> kSigns = {
    {{"cdot", "*"},        {"times", "*"},     {"ast", "*"},       {"div", "/"},      {"pm", "pm"},
     {"mp", "pm"},         {"cup", "cup"},     {"le", "<="},       {"leq", "<="},     {"leqslant", "<="},
     {"ge", ">="},         {"geq", ">="},      {"geqslant", ">="}, {"lt", "<"},       {"gt", ">"},
     {"ne", "!="},         {"neq", "!="},      {"in", "="},        {"equiv", "="},    {"approx", "="},
     {"to", ","},          {"lvert", "|"},     {"rvert", "|"},     {"vert", "|"},     {"mid", "|"},
     {"langle", "("},      {"rangle", ")"},    {"lbrace", "\\{"},  {"rbrace", "\\}"}, {"lfloor", "lfloor"},
     {"rfloor", "rfloor"}, {"lceil", "lceil"}, {"rceil", "rceil"}, {"colon", ":"}}};

constexpr std::array<std::string_view, 35> kUnits = {
    "cm",  "mm",  "km",  "dm",  "nm",  "kg",  "mg",   "ml",  "mL",  "ft",  "yd",  "mi",
    "lb",  "lbs", "oz",  "hr",  "hrs", "min", "mins", "sec", "kph", "mph", "rad", "deg",
    "gal", "pts", "cal", "mol", "Hz",  "kHz", "kW",   "kJ",  "sq",  "cu",  "in"};

// Characters beyond ASCII that answers have, and what LaTeX writes for them.
constexpr std::array<Words, 27> kCharacters = {{{"−", "-"},
                                                {"–", "-"},
                                                {"×", "*"},
                                                {"⋅", "*"},
                                                {"·", "*"},
                                                {"∙", "*"},
                                                {"÷", "/"},
                                                {"π", "\\pi "},
                                                {"√", "\\sqrt "},
                                                {"°", "^\\circ "},
                                                {"∞", "\\infty "},
                                                {"≤", "\\le "},
                                                {"≥", "\\ge "},
                                                {"≠", "\\ne "},
                                                {"≈", "\\approx "},
                                                {"±", "\\pm "},
                                                {"∪", "\\cup "},
                                                {"∅", "\\emptyset "},
                                                {"∈", "\\in "},
                                                {"²", "^2"},
                                                {"³", "^3"},
                                                {"½", "\\frac{1}{2}"},
                                                {"¼", "\\frac{1}{4}"},
                                                {"¾", "\\frac{3}{4}"},
                                                {"\u00a0", " "},
                                                {"€", ""},
                                                {"£", ""}}};

std::string spell_out(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto* found = std::find_if(kCharacters.begin(), kCharacters.end(),
                                     [&](const Words& entry) { return rest.starts_with(entry.first); });
    if (found != kCharacters.end()) {
      out += found->second;
      at += found->first.size();
    } else {
      out += text[at++];
    }
  }
  return out;
}

// Several words without anything else, one of them too long for a product of variables.
bool is_prose(std::string_view text) {
  size_t longest = 0, run = 0;
  for (char c : text) {
    if (!is_letter(c) && !is_space(c) && c != '.') return false;
    run = is_letter(c) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest > 3;
}

class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text), prose_(is_prose(text)) {}

  std::vector<AnswerToken> run() {
    while (true) {
      while (at_ < text_.size() && (is_space(text_[at_]) || text_[at_] == '$' || text_[at_] == '~')) ++at_;
      if (at_ == text_.size()) break;
      const char c = text_[at_];
      if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
        number();
      } else if (is_letter(c)) {
        letters();
      } else if (c == '\\') {
        ++at_;
        backslash();
      } else {
        plain_sign();
      }
    }
    tokens_.push_back({});
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool stands_here(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  void add(Kind kind, std::string_view text) { tokens_.push_back({kind, std::string(text)}); }
  void add_sign(std::string_view text) {
    if (text == "(" || text == "[" || text == "{" || text == "\\{") ++depth_;
    if (text == ")" || text == "]" || text == "}" || text == "\\}") --depth_;
    add(Kind::sign, text);
  }

  bool digits_at(size_t at, size_t count) const {
    if (at + count > text_.size()) return false;
    const auto run = text_.substr(at, count);
    return std::all_of(run.begin(), run.end(), is_digit) &&
           (at + count == text_.size() || !is_digit(text_[at + count]));
  }
  // How long a separator of thousands is that stands here, 0: none does.
  size_t separator_size() const {
    for (const std::string_view mark : {"{,}", "\\,", "\\!", ",\\!", "\\ ", ",", " "}) {
      if (!stands_here(mark) || !digits_at(at_ + mark.size(), 3)) continue;
      if (mark == "," && depth_ > 0) continue;
      // "1 234/5" is a mixed number.
      if (mark == " " && at_ + 4 < text_.size() && text_[at_ + 4] == '/') continue;
      return mark.size();
    }
    return 0;
  }

  void number() {
    AnswerToken token{Kind::number, ""};
    Decimal& value = token.value;
    bool grouped = false;
    const bool subscript = !tokens_.empty() && tokens_.back().text == "_";
    while (is_digit(peek())) {
      value.digits += text_[at_++];
      if (is_digit(peek()) || subscript || (!grouped && value.digits.size() > 3)) continue;
      if (const size_t mark = separator_size(); mark > 0) {
        grouped = true;
        at_ += mark;
      }
    }
    if (peek() == '.' && (is_digit(peek(1)) || text_.substr(at_ + 1).starts_with("\\overline{"))) {
      ++at_;
      while (is_digit(peek())) {
        value.digits += text_[at_++];
        ++value.behind_point;
      }
      if (stands_here("\\overline{")) repeating(value);
    } else if (peek() == '.' && (at_ + 1 == text_.size() || !is_letter(peek(1)))) {
      ++at_;  // "5."
    }
    if (value.digits.empty()) value.digits = "0";
    require(value.digits.size() <= 400, "answer: a number of {} digits", value.digits.size());
    exponent(value);
    token.text = value.digits;
    tokens_.push_back(std::move(token));
  }

  void repeating(Decimal& value) {
    at_ += std::string_view("\\overline{").size();
    while (is_digit(peek())) {
      value.digits += text_[at_++];
      ++value.behind_point;
      ++value.repeating;
    }
    require(peek() == '}' && value.repeating > 0, "answer: \\overline without digits");
    ++at_;
  }

  // "1.5e3", but not "2e" or "2ex".
  void exponent(Decimal& value) {
    if ((peek() != 'e' && peek() != 'E') || value.repeating > 0) return;
    const size_t sign = peek(1) == '-' || peek(1) == '+' ? 1 : 0;
    if (!is_digit(peek(1 + sign))) return;
    const bool negative = peek(1) == '-';
    at_ += 1 + sign;
    int power = 0;
    while (is_digit(peek())) power = std::min(power * 10 + (text_[at_++] - '0'), 1000);
    require(power <= 300, "answer: an exponent of more than 300");
    value.behind_point += negative ? power : -power;
    if (value.behind_point < 0) {
      value.digits.append(static_cast<size_t>(-value.behind_point), '0');
      value.behind_point = 0;
    }
  }

  void letters() {
    const size_t begin = at_;
    while (is_letter(peek())) ++at_;
    const std::string_view run = text_.substr(begin, at_ - begin);
    if (is_in(kFunctions, run)) return add(Kind::function, run);
    if (run == "and" || run == "or") return add_sign(",");
    if (run == "pi" || run == "infty") return add(Kind::symbol, run);
    if (run == "inf" || run == "infinity") return add(Kind::symbol, "infty");
    if (run == "sqrt") return add(Kind::command, run);
    // A run of letters is a product of variables if it is short, else a word.
    const bool unit = is_in(kUnits, run) && !tokens_.empty();
    if (unit || prose_ || run.size() > 3) return word(run);
    for (char c : run) add(Kind::symbol, std::string_view(&c, 1));
  }

  void word(std::string_view text) {
    std::string letters;
    for (char c : text) letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    add(Kind::word, letters);
  }

  // The text between braces, which begin here; "" where they do not.
  std::string_view braced() {
    while (is_space(peek())) ++at_;
    if (peek() != '{') return {};
    const size_t begin = ++at_;
    for (int depth = 1; at_ < text_.size(); ++at_) {
      if (text_[at_] == '{') ++depth;
      if (text_[at_] == '}' && --depth == 0) return text_.substr(begin, at_++ - begin);
    }
    fail("answer: a brace is not closed");
  }

  void backslash() {
    if (!is_letter(peek())) {
      const char c = peek();
      if (at_ < text_.size()) ++at_;
      if (c == '{' || c == '}') return add_sign(c == '{' ? "\\{" : "\\}");
      if (c == '%') return add_sign("%");
      if (c == '\\') return add_sign(";;");  // the end of a matrix's row
      if (c == '|') return add_sign("|");
      return;  // spacing, an escaped $, a delimiter of formulas
    }
    const size_t begin = at_;
    while (is_letter(peek())) ++at_;
    command(text_.substr(begin, at_ - begin));
  }

  void command(std::string_view name) {
    if (is_in(kPassedOver, name)) return;
    if (is_in(kFunctions, name)) return add(Kind::function, name);
    if (name == "frac" || name == "dfrac" || name == "tfrac" || name == "cfrac")
      return add(Kind::command, "frac");
    if (name == "binom" || name == "dbinom" || name == "tbinom") return add(Kind::command, "binom");
    if (name == "sqrt") return add(Kind::command, name);
    if (name == "circ" || name == "degree") return add_sign("degree");
    if (name == "varnothing") return add(Kind::symbol, "emptyset");
    if (name == "boxed" || name == "fbox") return;  // its braces group
    const auto* sign =
        std::find_if(kSigns.begin(), kSigns.end(), [&](const Words& entry) { return entry.first == name; });
    if (sign != kSigns.end()) return add_sign(sign->second);
    if (is_in(kTextCommands, name)) return text_command(braced());
    if (name == "begin" || name == "end") return environment(name, braced());
    require(name != "ldots" && name != "dots" && name != "cdots" && name != "overline",
            "answer: \\{} has no value", name);
    add(Kind::symbol, name);
  }

  void text_command(std::string_view text) {
    std::string content;
    for (char c : text)
      if (c != '(' && c != ')' && c != '$' && c != '\\' && c != '.') content += c;
    const size_t first = content.find_first_not_of(" \t\n");
    if (first == std::string::npos) return;
    content = content.substr(first, content.find_last_not_of(" \t\n") + 1 - first);
    if (content == "and" || content == "or") return add_sign(",");
    if (content.size() == 1 && is_letter(content[0]) && tokens_.empty()) return add(Kind::symbol, content);
    if (std::all_of(content.begin(), content.end(), [](char c) { return is_digit(c); })) {
      tokens_.push_back({Kind::number, content, {content}});
      return;
    }
    word(content);
  }

  void environment(std::string_view name, std::string_view kind) {
    require(kind.ends_with("matrix") || kind == "array", "answer: \\begin{{{}}} has no value", kind);
    if (name == "end") return add_sign("]rows");
    if (kind == "array") braced();
    add(Kind::command, "rows");
  }

  void plain_sign() {
    const std::string_view rest = text_.substr(at_);
    for (const std::string_view two : {"**", "<=", ">=", "!=", "=="})
      if (rest.starts_with(two)) {
        at_ += 2;
        return add_sign(two == "**" ? "^" : two == "==" ? "=" : two);
      }
    const char c = text_[at_++];
    if (c == '.' || c == '"' || c == '\'' || c == '?') return;  // punctuation of a sentence
    if (c == ';') return add_sign(",");
    constexpr std::string_view known = "+-*/^_()[]{}|,=<>!%&:";
    require(known.find(c) != std::string_view::npos, "answer: the character '{}' has no meaning",
            c >= ' ' && c < 0x7f ? std::string(1, c) : "\\?");
    add_sign(std::string_view(&c, 1));
  }

  std::string_view text_;
  bool prose_;
  size_t at_ = 0;
  int depth_ = 0;
  std::vector<AnswerToken> tokens_;
};

}  // namespace

std::vector<AnswerToken> answer_tokens(std::string_view text) {
  require(text.size() <= 4000, "answer: {} characters", text.size());
  const std::string spelled = spell_out(text);
  std::vector<AnswerToken> tokens = Cutter(spelled).run();
  require(tokens.size() <= 1000, "answer: {} tokens", tokens.size());
  return tokens;
}

}  // namespace megatron::rl
