/* A process that is over before a slow profiler knows it: 32 ms of CPU time, at a depth of its own.
 * gcc -O2 -fomit-frame-pointer -o brief brief.c
 * Usage: brief MILLISECONDS DEPTH; prints the CPU nanoseconds of the process when done. */
#include "dive.h"

int main(int count, char **arguments) {
    if (count != 3) return 2;
    volatile uint64_t v = dive(strtoull(arguments[2], NULL, 10), strtoull(arguments[1], NULL, 10) * 1000000u);
    (void)v;
    printf("%llu\n", (unsigned long long)clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
