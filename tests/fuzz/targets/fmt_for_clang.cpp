// fmt's library as g++ built it names this function in a way that clang does not ask for.
#include <fmt/format.h>

template void fmt::detail::vformat_to(fmt::detail::buffer<char>&, fmt::string_view,
                                      fmt::basic_format_args<fmt::format_context>, fmt::detail::locale_ref);
