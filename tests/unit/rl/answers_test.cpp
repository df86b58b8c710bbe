// Whether an answer means the same as the expected one.
#include <gtest/gtest.h>

#include "megatron/rl/environments/math/answer_equality.h"
#include "megatron/rl/environments/math/final_answer.h"

namespace megatron::rl {
namespace {

struct Pair {
  const char *expected, *answer;
};

void expect_equal(std::initializer_list<Pair> pairs) {
  for (const Pair& pair : pairs) {
    EXPECT_TRUE(answers_equal(pair.expected, pair.answer)) << pair.expected << " and " << pair.answer;
    EXPECT_TRUE(answers_equal(pair.answer, pair.expected)) << pair.answer << " and " << pair.expected;
  }
}
void expect_different(std::initializer_list<Pair> pairs) {
  for (const Pair& pair : pairs) {
    EXPECT_FALSE(answers_equal(pair.expected, pair.answer)) << pair.expected << " and " << pair.answer;
    EXPECT_FALSE(answers_equal(pair.answer, pair.expected)) << pair.answer << " and " << pair.expected;
  }
}

TEST(Answers, Numbers) {
  expect_equal({{"72", "72"},
                {"72", "72."},
                {"72", "72.0"},
                {"72", "+72"},
                {"-3", "−3"},
                {"1234567", "1,234,567"},
                {"1234567", "1{,}234{,}567"},
                {"1234567", "1\\,234\\,567"},
                {"1234", "1,\\!234"},
                {"12345", "12 345"},
                {"0.5", ".5"},
                {"1500", "1.5e3"},
                {"1500", "1.5 \\times 10^3"},
                {"0.00015", "1.5 \\cdot 10^{-4}"},
                {"1/3", "0.\\overline{3}"},
                {"1/6", "0.1\\overline{6}"},
                {"1/3", "0.333333"},
                {"\\pi", "3.14159265"},
                {"2^{200}", "1606938044258990275541962092341162602522202993782792835301376"},
                {"10^{100}", "100^{50}"}});
  expect_different({{"72", "73"},
                    {"72", "7.2"},
                    {"72", "-72"},
                    {"1234", "1,235"},
                    {"1/3", "0.333"},
                    {"1/3", "0.333334"},
                    {"\\pi", "3.14"},
                    {"0.1234567", "0.1234568"},
                    {"2^{200}", "1606938044258990275541962092341162602522202993782792835301377"},
                    {"10^{100}", "10^{100}+1"},
                    {"72", ""},
                    {"", ""},
                    {"72", "seventy-two"}});
}

TEST(Answers, Fractions) {
  expect_equal({{"\\frac{1}{2}", "1/2"},
                {"\\frac12", "0.5"},
                {"\\frac{1}{2}", "\\dfrac{2}{4}"},
                {"\\frac34", "\\tfrac{3}{4}"},
                {"\\frac{-3}{4}", "-\\frac{3}{4}"},
                {"-\\frac{3}{4}", "\\frac{3}{-4}"},
                {"\\frac 5 6", "5/6"},
                {"1\\frac{1}{2}", "3/2"},
                {"1 1/2", "3/2"},
                {"-1\\frac{1}{2}", "-1.5"},
                {"2\\frac{\\pi}{3}", "\\frac{2\\pi}{3}"},
                {"½", "0.5"},
                {"\\frac{1}{1+\\frac{1}{2}}", "2/3"},
                {"\\frac{100000000000000000000}{3}", "\\frac{200000000000000000000}{6}"}});
  expect_different({{"\\frac{1}{2}", "\\frac{1}{3}"},
                    {"1/2", "2"},
                    {"\\frac{1}{0}", "\\frac{2}{0}"},
                    {"\\frac{100000000000000000000}{3}", "\\frac{200000000000000000001}{6}"}});
}

TEST(Answers, UnitsAndCurrency) {
  expect_equal({{"5", "5 \\text{ cm}"},
                {"5", "5 cm"},
                {"5", "5\\,\\mathrm{cm}"},
                {"5", "\\$5"},
                {"5", "$5$"},
                {"5", "5 dollars"},
                {"18", "18 square meters"},
                {"60", "60 \\text{ km/h}"},
                {"12\\text{ cm}^2", "12"},
                {"30", "30^\\circ"},
                {"30", "30°"},
                {"30", "30 degrees"},
                {"50\\%", "50"},
                {"50%", "1/2"},
                {"5 apples", "5 apple"},
                {"5 \\text{ cm}", "5cm"}});
  expect_different({{"5 \\text{ cm}", "5 \\text{ m}"},
                    {"5 hours", "5 minutes"},
                    {"5", "6 cm"},
                    {"50\\%", "5"},
                    {"50 \\%", "50 \\text{ cm}/100"}});
}

TEST(Answers, RootsAndSymbols) {
  expect_equal({{"20\\sqrt{3}", "\\sqrt{1200}"},
                {"20\\sqrt3", "20\\cdot\\sqrt{3}"},
                {"\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}"},
                {"\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}"},
                {"\\sqrt[3]{-8}", "-2"},
                {"\\sqrt[3]{16}", "2\\sqrt[3]{2}"},
                {"x^2+2x+1", "(x+1)^2"},
                {"2xy", "2yx"},
                {"\\frac{x^2-1}{x-1}", "x+1"},
                {"a(b+c)", "ab+ac"},
                {"\\sin^2 x + \\cos^2 x", "1"},
                {"\\sin(2x)", "2\\sin x\\cos x"},
                {"\\ln(6)", "\\ln 2+\\ln 3"},
                {"\\log_2 8", "3"},
                {"e^{2x}", "(e^x)^2"},
                {"5!", "120"},
                {"\\binom{10}{3}", "120"},
                {"|{-3}|", "3"},
                {"\\lfloor 3.7 \\rfloor", "3"},
                {"2i", "\\sqrt{-4}"},
                {"(1+i)^2", "2i"},
                {"\\frac{\\pi}{2}", "π/2"},
                {"x_1+x_2", "x_{2}+x_{1}"},
                {"2**3", "8"},
                {"4\\pi r^2", "4 \\pi r^{2}"}});
  expect_different({{"x+1", "x-1"},
                    {"x^2", "x^3"},
                    {"x", "y"},
                    {"\\sqrt{x^2}", "x"},
                    {"x_1", "x_2"},
                    {"\\sqrt{2}", "\\sqrt{3}"},
                    {"\\sin x", "\\cos x"},
                    {"1011_2", "1011"},
                    {"yes", "no"},
                    {"\\infty", "-\\infty"}});
}

TEST(Answers, SeveralValues) {
  expect_equal({{"1, 2", "2, 1"},
                {"1, 2", "2 and 1"},
                {"1,2", "\\{1,2\\}"},
                {"x=1, x=2", "1 \\text{ or } 2"},
                {"\\pm 3", "3, -3"},
                {"1 \\pm \\sqrt{2}", "1-\\sqrt2, 1+\\sqrt2"},
                {"(1,2)", "\\left( 1, 2 \\right)"},
                {"(1, \\frac{1}{2})", "(1.0, 0.5)"},
                {"[0,1)", "[0, 1.0)"},
                {"(-\\infty,3]", "(-\\infty, 3]"},
                {"(0,1)\\cup(2,3)", "(2,3) \\cup (0,1)"},
                {"\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}",
                 "\\begin{bmatrix}1&2\\\\3&\\frac{8}{2}\\end{bmatrix}"},
                {"\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(1,2)"},
                {"\\emptyset", "\\{\\}"}});
  expect_different({{"1, 2", "1"},
                    {"1, 1", "1, 2"},
                    {"(1,2)", "(2,1)"},
                    {"(1,2)", "1, 2"},
                    {"[0,1)", "(0,1)"},
                    {"[0,1)", "[0,1]"},
                    {"\\pm 3", "3"},
                    {"\\begin{pmatrix} 1 & 2 \\end{pmatrix}", "\\begin{pmatrix} 2 & 1 \\end{pmatrix}"}});
}

TEST(Answers, Relations) {
  expect_equal({{"5", "x = 5"},
                {"5", "x = 2 + 3 = 5"},
                {"2x+1", "f(x) = 2x + 1"},
                {"y = 2x + 1", "2x - y + 1 = 0"},
                {"x < 5", "5 > x"},
                {"x \\le 5", "x <= 5"},
                {"x \\in [0,1]", "[0,1]"},
                {"A = 3", "3"}});
  expect_different({{"5", "x = 6"},
                    {"x < 5", "x \\le 5"},
                    {"x < 5", "x > 5"},
                    {"y = 2x + 1", "y = 2x + 2"},
                    {"5", "2x = 5"},
                    {"5", "x < 5"}});
}

TEST(Answers, Words) {
  expect_equal({{"\\text{Tuesday}", "Tuesday"},
                {"Tuesday", "tuesday."},
                {"\\text{New York}", "new  york"},
                {"(B)", "B"},
                {"\\text{(B)}", "B"},
                {"\\textbf{(B)}", "\\text{B}"},
                {"\\text{even}", "even"}});
  expect_different({{"Tuesday", "Thursday"}, {"B", "C"}, {"even", "odd"}, {"New York", "York New"}});
}

TEST(Answers, HostileTextsEndSoon) {
  const auto begin = std::chrono::steady_clock::now();
  const auto repeated = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  const std::vector<std::string> texts = {
      repeated("(", 3000),
      repeated("{", 3000),
      repeated("-", 3000),
      repeated("\\sqrt{", 600),
      repeated("2^", 400) + "2",
      repeated("\\frac{1}{", 300),
      repeated("1,", 1500),
      repeated("|", 900),
      repeated("!", 900),
      std::string(3999, '9'),
      "(-8)^{1/" + repeated("{(-8)^{1/", 12) + "3" + repeated("}}", 12) + "}",
      repeated("\\pm 1", 700),
      "99999999999999999!",
      "\\binom{99999}{50000}",
      repeated("(1,", 200),
      repeated("\\text{a}", 400),
      std::string("1e99999999999"),
      repeated("\\begin{pmatrix}", 200),
      repeated("x=", 300),
      repeated("\xff\x00", 10),
      repeated("9", 30) + "^" + repeated("9", 30)};
  for (const std::string& text : texts)
    for (const char* expected : {"5", "x+1", "(1,2)"})
      EXPECT_FALSE(answers_equal(expected, text)) << text.substr(0, 40);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(FinalAnswer, LastBoxed) {
  const auto text = [](std::string_view response) {
    const auto found = last_boxed(response);
    return found ? std::string(found->text) : "none";
  };
  EXPECT_EQ(text("so \\boxed{5}"), "5");
  EXPECT_EQ(text("\\boxed{4} no, \\boxed{ 5 }."), "5");
  EXPECT_EQ(text("\\boxed{\\frac{1}{2}}"), "\\frac{1}{2}");
  EXPECT_EQ(text("\\boxed{\\boxed{5}}"), "\\boxed{5}");
  EXPECT_EQ(text("\\boxed{\\{1, 2\\}}"), "\\{1, 2\\}");
  EXPECT_EQ(text("\\boxed{4} and \\boxed{5"), "4");
  EXPECT_EQ(text("\\boxed{4 and \\boxed{5}"), "5");
  EXPECT_EQ(text("\\boxed 5"), "none");
  EXPECT_EQ(text("}}}\\boxed{5}}}"), "5");
  EXPECT_EQ(text("\\\\boxed{5}"), "5");  // as models write it that have seen escaped text
  EXPECT_TRUE(last_boxed("\\boxed{5} \n")->at_end);
  EXPECT_FALSE(last_boxed("\\boxed{5}.")->at_end);
  EXPECT_TRUE(answers_equal("5", last_boxed("\\boxed{\\boxed{5}}")->text));
}

TEST(FinalAnswer, LastTagged) {
  EXPECT_EQ(last_tagged("<answer>1</answer> <answer>\n2 </answer>")->text, "2");
  EXPECT_EQ(last_tagged("<answer> <answer>3</answer>")->text, "3");
  EXPECT_FALSE(last_tagged("<answer>3"));
  EXPECT_FALSE(last_tagged("3</answer>"));
  EXPECT_TRUE(last_tagged("<answer>3</answer>\n")->at_end);
  EXPECT_FALSE(last_tagged("<answer>3</answer> or so")->at_end);
  EXPECT_EQ(last_tagged("<answer></answer>")->text, "");
}

}  // namespace
}  // namespace megatron::rl
