/// @file
/// The version of these headers, and of the library that a program runs with.
#pragma once

#include "ps_shm/export.hpp"

/// The version that a program is compiled for, by semantic versioning; docs/compatibility.md says what it promises.
#define PS_SHM_VERSION_MAJOR 0  ///< This is its first number.
#define PS_SHM_VERSION_MINOR 1  ///< The second number of PS_SHM_VERSION.
#define PS_SHM_VERSION_PATCH 0  ///< The third number of PS_SHM_VERSION.
#define PS_SHM_VERSION "0.1.0"  ///< All three numbers of the version that a program is compiled for, as text.

/// Everything that the library declares.
namespace PS_SHM_API ps_shm {

/// The version of the library that the program runs with, in the form of PS_SHM_VERSION. It is another one where the
/// library was updated since the program was compiled. The text lives as long as the library is loaded.
///
/// @progress wait-free.
PS_SHM_API const char* library_version() noexcept;

}  // namespace ps_shm
