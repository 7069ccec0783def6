/* A process whose main thread has ended while two others work on: its /proc/PID/maps is empty, its /proc/PID/exe is
 * gone, its leader is a zombie.
 * gcc -O2 -fomit-frame-pointer -pthread -o leaderless leaderless.c
 * Usage: leaderless MILLISECONDS; each thread works for so long, or until SIGTERM. The last prints the CPU time of both and where their
 * stacks end, by the compiler's own unwinder: {"ns":NS,"root":{...}}. */
#include "split.h"
#include <pthread.h>
#include <signal.h>

static uint64_t milliseconds;
static uint64_t total_ns;
static int working = 2;
static volatile sig_atomic_t enough;

static void stop(int signal) {
    (void)signal;
    enough = 1;
}

APART static uint64_t leaf(uint64_t end_ns) {
    uint64_t v = 1;
    while (!enough && clock_ns(CLOCK_MONOTONIC) < end_ns) v = churn(v, 100000);
    return v;
}
APART static uint64_t middle(uint64_t end_ns) {
    uint64_t v = leaf(end_ns);
    STAY;
    return v + 1;
}

static void *work(void *argument) {
    (void)argument;
    const uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    volatile uint64_t v = middle(clock_ns(CLOCK_MONOTONIC) + milliseconds * 1000000u);
    (void)v;
    __atomic_add_fetch(&total_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID) - before, __ATOMIC_SEQ_CST);
    if (__atomic_sub_fetch(&working, 1, __ATOMIC_SEQ_CST) > 0) return NULL;
    printf("{\"ns\":%llu,", (unsigned long long)total_ns);
    print_root();
    puts("}");
    fflush(stdout);
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    milliseconds = strtoull(arguments[1], NULL, 10);
    signal(SIGTERM, stop);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, work, NULL) != 0) return 1;
    }
    pthread_exit(NULL);
}
