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
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    volatile uint64_t v = outer(1);
    (void)v;
    is_leaf();
    print_truth();
    return 0;
}
