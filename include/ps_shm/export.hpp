/// @file
/// Symbol visibility: the shared library exports what the headers of this folder declare, and nothing else.
#pragma once

#if __cplusplus < 202002L
#error "ps_shm needs C++20: compile with -std=c++20, or a later standard"
#endif

/// Exports the types of a namespace, and a function: it stands on the namespace of each public header and on each
/// function outside of a class. (Clang takes a function's visibility from its definition, which is in another one.)
/// The library is compiled with hidden visibility.
#define PS_SHM_API [[gnu::visibility("default")]]

/// Hides the definition of a class that a public header only declares, such as Worker::Impl. It does not stand on the
/// declaration, or else GCC would warn programs of members with lower visibility than their class.
#define PS_SHM_HIDDEN [[gnu::visibility("hidden")]]
