// What the shared library exports: what the headers of this folder declare, and nothing else.
#pragma once

// On the namespace of a public header: all types that it declares are exported. On each function outside a class as well:
// clang goes by the namespace of a function's definition, which is another one than the header's. The library is compiled
// with hidden visibility.
#define PS_API [[gnu::visibility("default")]]

// On the definition of a class that a public header only names: how the library is made, which stays hidden. (Not where it
// is named: whoever includes the header would be warned of members that are seen less than their class.)
#define PS_HIDDEN [[gnu::visibility("hidden")]]
