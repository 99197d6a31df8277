// Lets arithmetic on arrays use the processor's vector width.
#pragma once

// Before a function: compiles it for several vector widths, one of which is chosen when the library is loaded.
// Sanitizers run before that choice, so their builds have the default width only. The function must be in an unnamed
// namespace: otherwise the library would export the resolver (GCC 12).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PS_SHM_SIMD_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define PS_SHM_SIMD_CLONES
#endif

// Before a loop: no iteration reads what another one writes, whatever the compiler can prove about its pointers.
#if defined(__clang__)
#define PS_SHM_SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define PS_SHM_SIMD_LOOP _Pragma("GCC ivdep")
#endif
