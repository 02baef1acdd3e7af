#include "instruction_set.h"

static int chosen = -1;

static int best(void) {
#if X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
    if (__builtin_cpu_supports("avx2")) return 1;
#endif
    return 0;
}

int lipspline_instruction_set(void) {
    int level = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    return level < 0 ? lipspline_limit_instruction_set(2) : level;
}

int lipspline_limit_instruction_set(int highest) {
    const int level = best() < highest ? best() : highest;
    __atomic_store_n(&chosen, level, __ATOMIC_RELAXED);
    return level;
}
