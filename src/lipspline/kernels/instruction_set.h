/* Which instruction set to use: asked of the processor once, lowered only by tests. */
#ifndef LIPSPLINE_INSTRUCTION_SET_H
#define LIPSPLINE_INSTRUCTION_SET_H

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define X86 1
#define TARGET_AVX2 __attribute__((target("avx2")))
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define X86 0
#endif

/* 0 baseline, 1 AVX2, 2 AVX-512. */
int lipspline_instruction_set(void);

/* Use at most `highest` from now on; returns what was chosen. */
int lipspline_limit_instruction_set(int highest);

#endif
