// Precompiled for the library and the programs: what most of their sources include, and takes long to read. A source
// still names all that it uses: the headers are compiled alone (tests/meson.build), and builds with -Db_pch=false are
// tested, too.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
