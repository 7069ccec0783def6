// Half of its time in a signal handler on a stack of its own, which interrupted `victim`. Runs until it is
// killed.
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static volatile unsigned long sink;

static long cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000 + now.tv_nsec;
}

static __attribute__((noinline, noclone)) void in_handler(void) {
    long end = cpu_ns() + 10000000;
    while (cpu_ns() < end)
        for (int i = 0; i < 10000; i++)
            sink += i;
}

static void handler(int signal) {
    in_handler();
    sink += signal;
}

static __attribute__((noinline, noclone)) void victim(void) {
    for (;;)
        sink++;
}

int main(void) {
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&stack, 0);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    sigaction(SIGPROF, &action, 0);
    // Of CPU time: at most the handler's own 10 ms pass before the next is due.
    struct itimerval every = { { 0, 20000 }, { 0, 20000 } };
    setitimer(ITIMER_PROF, &every, 0);
    victim();
}
