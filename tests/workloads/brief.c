/* A process that is over before a slow profiler knows it: 32 ms of CPU time, at a depth of its own.
 * gcc -O2 -fomit-frame-pointer -o brief brief.c
 * Usage: brief MILLISECONDS DEPTH; prints the CPU nanoseconds of the process when done. */
#include "split.h"

APART static uint64_t spin_until(uint64_t end_ns) {
    uint64_t v = 1;
    while (clock_ns(CLOCK_PROCESS_CPUTIME_ID) < end_ns) v = churn(v, 100000);
    return v;
}
APART static uint64_t dive(uint64_t depth, uint64_t end_ns) {
    if (depth == 0) return spin_until(end_ns);
    uint64_t v = dive(depth - 1, end_ns);
    STAY;
    return v + 1;
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    volatile uint64_t v = dive(strtoull(arguments[2], NULL, 10), strtoull(arguments[1], NULL, 10) * 1000000u);
    (void)v;
    printf("%llu\n", (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
