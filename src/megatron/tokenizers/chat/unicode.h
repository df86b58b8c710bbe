#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::chat {

// Whether the bytes are valid UTF-8 without surrogates.
bool is_utf8(std::string_view bytes);

// The code point at `at`, which moves behind it. The bytes are valid UTF-8.
char32_t next_code_point(std::string_view bytes, size_t& at);

// Appends the UTF-8 form of a code point.
void append_code_point(std::string& out, char32_t point);

// All code points of valid UTF-8.
std::vector<char32_t> to_code_points(std::string_view bytes);

// How many code points valid UTF-8 holds.
int64_t count_code_points(std::string_view bytes);

// The byte at which the code point number `index` begins; the size of `bytes` where there are no more.
size_t byte_offset(std::string_view bytes, int64_t index);

// What Python's str methods of the same names say of one character.
bool is_space(char32_t point);
bool is_alpha(char32_t point);
bool is_decimal(char32_t point);
bool is_digit(char32_t point);
bool is_numeric(char32_t point);
bool is_printable(char32_t point);
bool is_lower(char32_t point);
bool is_upper(char32_t point);
bool is_title(char32_t point);
inline bool is_alnum(char32_t point) { return is_alpha(point) || is_numeric(point) || is_digit(point); }

// str.lower, upper, title, capitalize, casefold and swapcase of Python.
enum class Case { lower, upper, title, capitalize, fold, swap };
std::string change_case(std::string_view bytes, Case to);

// Removes whitespace, or the code points of `chars` where it is not null, from the chosen ends.
std::string_view strip(std::string_view bytes, const std::string_view* chars, bool left, bool right);

}  // namespace megatron::chat
