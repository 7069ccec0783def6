/* Works whenever it gets SIGUSR1, at a depth of its own, and sleeps in between.
 * gcc -O2 -fomit-frame-pointer -o pulse pulse.c
 * Usage: pulse MILLISECONDS DEPTH: so much CPU time each. Says "ready", then a line for each time: Unix nanoseconds of
 * begin and end, CPU nanoseconds in between. */
#include "dive.h"
#include <signal.h>

int main(int count, char **arguments) {
    if (count != 3) return 2;
    const uint64_t work_ns = strtoull(arguments[1], NULL, 10) * 1000000u;
    const uint64_t depth = strtoull(arguments[2], NULL, 10);
    sigset_t told;
    sigemptyset(&told);
    sigaddset(&told, SIGUSR1);
    sigprocmask(SIG_BLOCK, &told, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    for (int signal; sigwait(&told, &signal) == 0;) {
        const uint64_t begin = clock_ns(CLOCK_REALTIME), before = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        volatile uint64_t v = dive(depth, before + work_ns);
        (void)v;
        printf("%llu %llu %llu\n", (unsigned long long)begin, (unsigned long long)clock_ns(CLOCK_REALTIME),
               (unsigned long long)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before));
    }
    return 1;
}
