/* The time is spent in the vDSO, below the C library. */
#include "chain.h"

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do {
        struct timespec now;
        for (int i = 0; i < 20000; i++) v += (uint64_t)clock_gettime(CLOCK_MONOTONIC, &now) + (uint64_t)now.tv_nsec;
    } while (!spun_enough());
    STAY;
    return v + 1;
}

#include "callers.h"
