/* Waits in known places and says how long, by its own clock.
 * off_cpu split SECONDS SEED          sleeps 60 %, reads 30 % and spins 10 % of its time, in one thread
 * off_cpu hop SECONDS SEED            the same, on another CPU after each wait
 * off_cpu crowd SECONDS SEED THREADS  so many threads, each in short sleeps
 * off_cpu long SECONDS SEED THREADS   so many threads, each in one sleep as long as the run
 * off_cpu left SECONDS SEED THREADS   as long, but the process ends while they sleep: they were to sleep for ever
 * off_cpu storm SECONDS SEED          two threads on one CPU that hand a byte to each other, and a third that sleeps
 * gcc -O2 -pthread -o off_cpu off_cpu.c */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static atomic_long sleep_ns, read_ns, spin_ns, waits;
static long end_ns;
static volatile unsigned long sink;

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long random_to(uint64_t *seed, long below) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (long)((*seed >> 33) % (uint64_t)below);
}

__attribute__((noinline)) static void sleep_here(long ns) {
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    long start = now_ns();
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    atomic_fetch_add(&sleep_ns, now_ns() - start);
    atomic_fetch_add(&waits, 1);
}

__attribute__((noinline)) static void read_here(int timer, long ns) {
    struct itimerspec t = {{0, 0}, {0, ns}};
    uint64_t expired;
    timerfd_settime(timer, 0, &t, NULL);
    long start = now_ns();
    if (read(timer, &expired, sizeof expired) != sizeof expired) abort();
    atomic_fetch_add(&read_ns, now_ns() - start);
    atomic_fetch_add(&waits, 1);
}

__attribute__((noinline)) static void spin_here(long ns) {
    long start = now_ns();
    while (now_ns() - start < ns) sink++;
    atomic_fetch_add(&spin_ns, now_ns() - start);
}

static void hop(uint64_t *seed) {
    static int cpus[1024], count;
    cpu_set_t set;
    if (count == 0) {
        sched_getaffinity(0, sizeof set, &set);
        for (int cpu = 0; cpu < 1024; cpu++)
            if (CPU_ISSET(cpu, &set)) cpus[count++] = cpu;
    }
    CPU_ZERO(&set);
    CPU_SET(cpus[random_to(seed, count)], &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void split(uint64_t seed, int hops) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    while (now_ns() < end_ns) {
        sleep_here(6000000 + random_to(&seed, 12000000));
        if (hops) hop(&seed);
        read_here(timer, 3000000 + random_to(&seed, 6000000));
        if (hops) hop(&seed);
        spin_here(1000000 + random_to(&seed, 2000000));
    }
}

static void *crowd(void *number) {
    uint64_t seed = (uint64_t)number * 77777 + 1;
    while (now_ns() < end_ns) sleep_here(10000000 + random_to(&seed, 80000000));
    return NULL;
}

static void *sleep_long(void *unused) {
    sleep_here(end_ns - now_ns());
    return unused;
}

static void *sleep_for_ever(void *unused) {
    for (;;) {
        struct timespec t = {1000000, 0};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    }
    return unused;
}

static int pipes[2][2];

static void *echo(void *unused) {
    char byte;
    while (read(pipes[0][0], &byte, 1) == 1)
        if (write(pipes[1][1], &byte, 1) != 1) abort();
    return unused;
}

__attribute__((noinline)) static void ping_here(void) {
    char byte = 1;
    if (write(pipes[0][1], &byte, 1) != 1 || read(pipes[1][0], &byte, 1) != 1) abort();
}

static void *sleep_slowly(void *unused) {
    while (now_ns() < end_ns) sleep_here(100000000);
    return unused;
}

static void storm(void) {
    pthread_t other, sleeper;
    cpu_set_t set;
    if (pipe(pipes[0]) || pipe(pipes[1])) abort();
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    sched_setaffinity(0, sizeof set, &set);
    if (pthread_create(&other, NULL, echo, NULL)) abort();
    if (pthread_create(&sleeper, NULL, sleep_slowly, NULL)) abort();
    while (now_ns() < end_ns) {
        long start = now_ns();
        ping_here();
        atomic_fetch_add(&read_ns, now_ns() - start);
        atomic_fetch_add(&waits, 1);
    }
    pthread_join(sleeper, NULL);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    const char *what = argv[1];
    uint64_t seed = strtoull(argv[3], NULL, 10);
    int count = argc > 4 ? atoi(argv[4]) : 0;
    long start = now_ns();
    end_ns = start + (long)(atof(argv[2]) * 1e9);
    void *(*run)(void *) = !strcmp(what, "crowd") ? crowd
                           : !strcmp(what, "long") ? sleep_long
                                                   : sleep_for_ever;
    pthread_t *threads = calloc((size_t)count + 1, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (long i = 0; i < count; i++)
        if (pthread_create(&threads[i], &small, run, (void *)(seed + (uint64_t)i))) abort();
    if (!strcmp(what, "split")) split(seed, 0);
    if (!strcmp(what, "hop")) split(seed, 1);
    if (!strcmp(what, "storm")) storm();
    if (!strcmp(what, "left")) {
        sleep_here(end_ns - now_ns()); /* the others sleep on, as long as this one and more */
        atomic_fetch_add(&sleep_ns, (now_ns() - start) * count);
    } else {
        for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
    }
    printf("{\"sleep_ns\":%ld,\"read_ns\":%ld,\"spin_ns\":%ld,\"waits\":%ld,\"wall_ns\":%ld}\n", sleep_ns,
           read_ns, spin_ns, waits, now_ns() - start);
    return 0;
}
