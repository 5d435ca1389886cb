/* unit.h: what every cmocka test file includes. */
#ifndef DS4_TESTS_UTIL_UNIT_H
#define DS4_TESTS_UTIL_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UNIT_SKIP(reason)              \
    do {                               \
        print_message("skipped (%s)\n", reason); \
        skip();                        \
    } while (0)

#define assert_has(haystack, needle)                                              \
    do {                                                                          \
        if (!strstr(haystack, needle))                                            \
            fail_msg("'%s' does not contain '%s'", haystack, needle);             \
    } while (0)

/* A small seeded generator (splitmix64) for reproducible random cases. */
static inline uint64_t unit_rand(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
