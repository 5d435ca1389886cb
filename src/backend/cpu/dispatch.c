/* dispatch.c: which inner loops this machine runs. */
#include "backend/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void) /* not every compiler knows the name in __builtin_cpu_supports */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

int cpu_usable(const cpu_kernels *best_first[CPU_KERNELS])
{
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && has_f16c();
    bool vnni = __builtin_cpu_supports("avx512vnni");
    if (avx2 && vnni && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        best_first[n++] = &cpu_avx512;
    if (avx2)
        best_first[n++] = &cpu_avx2;
#endif
    best_first[n++] = &cpu_plain;
    return n;
}
