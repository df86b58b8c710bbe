#include "megatron/tokenizers/chat/chat_template.h"

#include <gtest/gtest.h>

#include <thread>

namespace megatron::chat {
namespace {

std::string render(std::string_view source, const std::string& names = "{}") {
  return ChatTemplate(source).render(Json::parse(names)).text;
}

std::string error_of(std::string_view source, ChatOptions options = {}) {
  try {
    ChatTemplate(source).render(Json::object(), options);
  } catch (const TemplateError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, TakesTheWhitespaceThatBlocksOwn) {
  EXPECT_EQ(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(render("a  {%- if true -%}  b  {%- endif %} c"), "ab c");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(render("a\n  {{ 1 }}\nb"), "a\n  1\nb");
  EXPECT_EQ(render("a\n  {# c #}\nb\n\n"), "a\nb\n");
  EXPECT_EQ(render("{% raw %}{{ x }}{% endraw %}\r\ny"), "{{ x }}y");
}

TEST(ChatTemplate, PrintsValuesAsPython) {
  EXPECT_EQ(render("{{ [1, 2.0, 1e16, 1e-5, true, none, 'a\\'b', \"é\\n\"] }}"),
            "[1, 2.0, 1e+16, 1e-05, True, None, \"a'b\", 'é\\n']");
  EXPECT_EQ(render("{{ {'a': (1,)} }}{{ () }}{{ x }}"), "{'a': (1,)}()");
  EXPECT_EQ(render("{{ 7 // -2 }} {{ -7 % 3 }} {{ 2 ** -1 }} {{ 6 / 2 }}"), "-4 2 0.5 3.0");
  EXPECT_EQ(render("{{ x | tojson }}", R"({"x": {"b": [1.5, null], "a": "é<\n"}})"),
            R"({"b": [1.5, null], "a": "é<\n"})");
  EXPECT_EQ(render("{{ {'b': 1, 'a': []} | tojson(indent=2, sort_keys=true) }}"),
            "{\n  \"a\": [],\n  \"b\": 1\n}");
}

TEST(ChatTemplate, KeepsNamesInTheirScope) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"),
            "231");
  EXPECT_EQ(
      render("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"),
      "4");
  EXPECT_EQ(
      render(
          "{% macro m(a, b=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 3 %}{{ m(1) }}{{ m(1, b=2) }}"),
      "113123");
}

TEST(ChatTemplate, FetchesItemsWhenTheyAreAskedFor) {
  // The condition reads what the body wrote: only a loop that fetches late skips repeated roles.
  EXPECT_EQ(render("{% set n = namespace(last='') %}{% for r in ['a', 'a', 'b'] if r != n.last %}{{ r }}{% "
                   "set n.last = r %}{% endfor %}"),
            "ab");
  EXPECT_EQ(render("{% set g = [1, 2] | map('string') %}{{ g | join }}|{{ g | join }}"), "12|");
}

TEST(ChatTemplate, LoopsMoveOnWhereTheyAreIteratedOver) {
  EXPECT_EQ(render("{% for x in [1,2,3] %}{{ x }}{{ 2 in loop }}{{ loop.index }}{% endfor %}"), "1False3");
  EXPECT_EQ(render("{% for x in [1,2,3] %}{{ loop|length }}{{ loop is iterable }}{{ loop is sequence }}"
                   "{{ loop|list }}|{{ loop }}{% endfor %}"),
            "3TrueFalse[(2, <LoopContext 3/3>), (3, <LoopContext 3/3>)]|<LoopContext 3/3>");
  EXPECT_EQ(render("{% for x in [1,2,3,4] %}{{ x }}{% for y, l in loop %}{{ y }}-{{ l.index }}{% endfor %}."
                   "{% endfor %}"),
            "12-23-34-4.");
  EXPECT_EQ(render("{% for x in [1,2,3] %}{{ loop|reverse }}{% endfor %}"),
            "[(3, <LoopContext 3/3>), (2, <LoopContext 3/3>)]");
  EXPECT_NE(error_of("{% for x in [1,2] %}{{ loop|last }}{% endfor %}"), "no error");
}

TEST(ChatTemplate, PrintsObjectsAsPythonUpToTheirAddress) {
  EXPECT_EQ(render("{{ (missing|reverse|upper)|truncate(9, false, '…', 0) }}"), "<REVERSE…");
  const auto printed = [](const std::string& expression) {
    const std::string text = render("{{ " + expression + " }}");
    return text.substr(0, text.find(" at 0x7f")) + (text.size() > 17 && text.back() == '>' ? ">" : "");
  };
  EXPECT_EQ(printed("[1]|map('string')"), "<generator object sync_do_map>");
  EXPECT_EQ(printed("[1]|select"), "<generator object select_or_reject>");
  EXPECT_EQ(printed("[1]|batch(2)"), "<generator object do_batch>");
  EXPECT_EQ(printed("[1]|reverse"), "<list_reverseiterator object>");
  EXPECT_EQ(printed("{'a': 1}.items()|reverse"), "<dict_reverseitemiterator object>");
  EXPECT_EQ(printed("range(3)|reverse"), "<range_iterator object>");
  EXPECT_EQ(printed("'a'.strip"), "<built-in method strip of str object>");
  EXPECT_EQ(printed("{'a': 1}.get"), "<built-in method get of dict object>");
  EXPECT_EQ(render("{{ dict }}"), "<class 'dict'>");
}

TEST(ChatTemplate, ConditionsPassOnWhatTheyUnpacked) {
  const std::string items = "[{'k': 1, 'l': 2}, 'ab']",
                    body = "{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}";
  EXPECT_EQ(render("{% for a, b in " + items + " if b %}" + body), "('a', 'b');('k', 'l');");
  EXPECT_EQ(render("{% for a, b in " + items + " %}" + body), "ab;{'k': 1, 'l': 2};");
  EXPECT_EQ(render("{% for a in " + items + " if a %}" + body), "ab;{'k': 1, 'l': 2};");
}

TEST(ChatTemplate, MarkupEscapesWhatIsPutIntoIt) {
  EXPECT_EQ(render("{{ ('all'|e).replace('l', '<') }}"), "a&lt;&lt;");
  EXPECT_EQ(render("{{ ('all'|e).replace('l', '<'|safe) }}"), "a<<");
  EXPECT_EQ(render("{{ 'all'.replace('l', '<') }}"), "a<<");
  EXPECT_EQ(render("{{ ('+'|e).join(['<', 1]) }}{{ ('+'|e).join(['<']) is escaped }}"), "&lt;+1True");
}

TEST(ChatTemplate, RangesCountAndFindTheirItems) {
  EXPECT_EQ(
      render("{% set r = range(5,0,-2) %}{{ r.count(3) }}{{ r.count('l') }}{{ r.count(3.0) }}{{ r.index(1) }}"
             "|{{ r.start }}{{ r.stop }}{{ r.step }}|{{ r['index'](3) }}"),
      "1012|50-2|1");
  EXPECT_EQ(error_of("{{ range(3).index(7) }}"), "line 1: the value is not in the range");
  EXPECT_NE(error_of("{{ range(3).count() }}"), "no error");
}

// Jinja refuses them when it compiles a template.
TEST(ChatTemplate, RefusesBadKeysThatAreNeverReached) {
  const auto unreached = [](const std::string& expression) {
    return error_of("{% if false %}{{ " + expression + " }}{% endif %}");
  };
  for (const char* bad :
       {"{[1]: 2} == 1", "{[1]: 2}|length", "f({[1]:2})", "[{[1]:2}] == 1", "{[1]:2,x:1}==1", "{(1,[2]):2}.a",
        "not {{}:2}", "{-1:2,[]:3}==1", "x|default({[1]:2})"})
    EXPECT_NE(unreached(bad), "no error") << bad;
  for (const char* good : {"{[1]: 2}", "[{[1]: 2}]", "{x:1,[1]:2} == 1", "{[1]:x} == 1", "{[y]:2} == 1"})
    EXPECT_EQ(unreached(good), "no error") << good;
}

TEST(ChatTemplate, TellsWhereGenerationBlocksStand) {
  const ChatTemplate chat_template(
      "{% for m in [1, 2] %}é{% generation %}ü{{ m }}{% endgeneration %}{% endfor %}");
  EXPECT_TRUE(chat_template.has_generation());
  EXPECT_FALSE(ChatTemplate("x").has_generation());
  const ChatRendering rendering = chat_template.render(Json::object());
  EXPECT_EQ(rendering.text, "éü1éü2");
  EXPECT_EQ(rendering.generations, (std::vector<TextSpan>{{2, 5}, {7, 10}}));
}

TEST(ChatTemplate, NamesTheLineOfAnError) {
  EXPECT_EQ(error_of("a\n{{ missing.x }}"), "line 2: 'missing' is undefined");
  EXPECT_EQ(error_of("{% set n = namespace(missing) %}"), "line 1: 'missing' is undefined");
  EXPECT_EQ(error_of("a\n\n{% if %}"), "line 3: expected an expression, got '%}'");
  EXPECT_EQ(error_of("{{ 'a' | nothing }}"), "line 1: No filter named 'nothing'.");
  EXPECT_EQ(error_of("{{ raise_exception('as it is') }}"), "as it is");
  EXPECT_EQ(error_of("{% for x in [1] %}"), "line 1: expected 'else', got the end of the template");
  EXPECT_EQ(error_of("\xff"), "the template is not valid UTF-8");
}

TEST(ChatTemplate, RefusesWhatTheSandboxForbids) {
  EXPECT_EQ(error_of("{{ [].append(1) }}"),
            "line 1: access to attribute 'append' of 'list' object is unsafe.");
  EXPECT_EQ(error_of("{{ ''.__class__.mro() }}"),
            "line 1: access to attribute '__class__' of 'str' object is unsafe.");
  EXPECT_EQ(error_of("{{ range(200000) }}"), "line 1: range() of 200000 items, at most 100000 are allowed");
}

TEST(ChatTemplate, StopsAtItsLimits) {
  auto stops = [](std::string_view source, const char* reason, ChatLimits limits = {.steps = 2'000'000}) {
    const std::string error = error_of(source, {.limits = limits, .now = {}});
    EXPECT_NE(error.find(reason), std::string::npos) << source << ": " << error;
  };
  const std::string loops =
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor "
      "%}{% endfor %}";
  stops(loops, "steps");
  stops("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nests deeper");
  stops("{{ 'x' * 1000000000000 }}", "memory");
  stops("{{ [0] * 1000000000000 }}", "memory");
  stops("{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "raise the limit");
  stops(
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
      "limit");
  stops("{% set n = namespace(x=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
        "nested deeper");
  stops("{% set n = namespace() %}{% set n.n = n %}{{ n }}", "nests deeper");
  for (const char* grow : {"n.x | map('string')", "[n.x].index", "cycler(n.x)", "joiner(n.x)",
                           "{1: n.x}.items()", "n.x | batch(2)", "[] | map('d', n.x)"})
    stops(std::string("{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = ") + grow +
              " %}{% endfor %}",
          "nested deeper");
  stops("{% for i in range(99) %}{{ 'x' * 99 }}{% endfor %}", "writes more", {.output_bytes = 1000});
  stops("{{ '%999999999999d' % 1 }}", "too large");
  stops("{{ '{:999999999999}'.format(1) }}", "memory");
  std::string deep(5000, '(');
  EXPECT_NE(error_of("{{ " + deep).find("nested deeper"), std::string::npos);
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  EXPECT_NE(error_of(chain + " }}").find("deeper than"), std::string::npos);
}

TEST(ChatTemplate, IsSharedByThreads) {
  const ChatTemplate chat_template("{% for m in messages %}{{ m.role | upper }}{% endfor %}");
  const Json names = Json::parse(R"({"messages": [{"role": "user"}, {"role": "tool"}]})");
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts) threads.emplace_back([&] { text = chat_template.render(names).text; });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, "USERTOOL");
}

}  // namespace
}  // namespace megatron::chat
