#include "megatron/report/page.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "megatron/report/page_assets.h"

namespace megatron::report {
namespace {

// JSON within a script element: "</" and "<!--" would end or change it.
std::string embed(const Json& json) {
  std::string text;
  for (char letter : json.dump()) {
    if (letter == '<')
      text += "\\u003c";
    else
      text += letter;
  }
  return text;
}

// Whether a column holds words: those begin on the left, wide ones take several lines.
bool holds_words(const Table& table, size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<std::string>& row) {
    return column < row.size() && !row[column].empty() &&
           std::isalpha(static_cast<unsigned char>(row[column][0])) != 0;
  });
}

std::string table_html(const Table& table) {
  std::string text = "<div class=\"card wide scroll\"><table class=\"data\"><thead><tr>";
  std::vector<const char*> kinds;
  for (size_t i = 0; i < table.head.size(); ++i) {
    kinds.push_back(holds_words(table, i) ? " class=\"words\"" : "");
    text += fmt::format("<th{}>{}</th>", kinds[i], escape_html(table.head[i]));
  }
  text += "</tr></thead><tbody>";
  for (const std::vector<std::string>& row : table.rows) {
    text += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      text += fmt::format("<td{}>{}</td>", i < kinds.size() ? kinds[i] : "", escape_html(row[i]));
    text += "</tr>";
  }
  return text + "</tbody></table></div>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (char letter : text) switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  return result;
}

std::string render(const Page& page) {
  Json data = Json::object();
  Json& runs = data["runs"] = Json::array();
  for (const std::string& run : page.runs) {
    Json row = Json::object();
    row["name"] = run;
    runs.push_back(std::move(row));
  }
  Json& sections = data["sections"] = Json::array();
  for (const PageSection& section : page.sections) {
    Json row = Json::object();
    row["title"] = section.title;
    Json& charts = row["charts"] = Json::array();
    for (const Chart& chart : section.charts) charts.push_back(chart_json(chart));
    sections.push_back(std::move(row));
  }
  const std::string title = escape_html(page.title);
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n"
      "<link rel=\"icon\" "
      "href=\"data:,\">\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<header><div><h1>{}</h1>",
      title, page_css, title);
  if (!page.subtitle.empty()) text += fmt::format("<p class=\"subtitle\">{}</p>", escape_html(page.subtitle));
  text += "</div><div class=\"tools\"></div></header>\n";
  if (!page.tiles.empty()) {
    text += "<div class=\"tiles\">";
    for (const Tile& tile : page.tiles)
      text += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape_html(tile.value),
                          escape_html(tile.label));
    text += "</div>\n";
  }
  for (const Table& table : page.tables) text += table_html(table);
  text += "<noscript><p>The charts are drawn by a script in this file; allow it to run.</p></noscript>\n";
  text +=
      "<footer>Drag over a chart to look closer, double-click for the whole; numbers appear under the "
      "pointer.</footer>\n";
  return text +
         fmt::format(
             "</main>\n<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n"
             "</body>\n</html>\n",
             embed(data), page_js);
}

}  // namespace megatron::report
