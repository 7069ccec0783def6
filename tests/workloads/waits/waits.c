/* One thread waits, another lets it go: each way to wait in the C library, one at a time.
 * gcc -O2 -pthread -o waits-c waits.c; musl-gcc -O2 -static -pthread -o waits-musl waits.c
 * Usage: waits-c CASE MILLISECONDS [BESIDE]; prints as one line of JSON how long the thread "waiter" waited by
 * CLOCK_MONOTONIC around each call, how often, and where the lock lies. BESIDE 1: another thread locks and unlocks a
 * mutex of its own that nobody else wants, as fast as it can, and says how often.
 *
 * A lock is held 50 ms and free 1 ms. Everything else lets the waiter go every 51 ms. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
#define STAY __asm__ volatile("" ::: "memory")
#define HELD_NS 50000000
#define FREE_NS 1000000
#define BEFORE_NS 250000000

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void rest(long ns) {
    const struct timespec time = {ns / 1000000000, ns % 1000000000};
    nanosleep(&time, NULL);
}

/* An hour from now. */
static const struct timespec *later(clockid_t clock) {
    static __thread struct timespec time;
    clock_gettime(clock, &time);
    time.tv_sec += 3600;
    return &time;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inheriting;
static mtx_t plain_mutex;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t condvar = PTHREAD_COND_INITIALIZER;
static cnd_t plain_condvar;
static sem_t semaphore;
static pthread_barrier_t barrier;
static int pipe_ends[2];
static volatile int stop;

static void lock(void) { pthread_mutex_lock(&mutex); STAY; }
static void unlock(void) { pthread_mutex_unlock(&mutex); STAY; }
static void timedlock(void) { pthread_mutex_timedlock(&mutex, later(CLOCK_REALTIME)); STAY; }
static void lock_inheriting(void) { pthread_mutex_lock(&inheriting); STAY; }
static void unlock_inheriting(void) { pthread_mutex_unlock(&inheriting); STAY; }
static void lock_plain(void) { mtx_lock(&plain_mutex); STAY; }
static void timedlock_plain(void) { mtx_timedlock(&plain_mutex, later(CLOCK_REALTIME)); STAY; }
static void unlock_plain(void) { mtx_unlock(&plain_mutex); STAY; }
static void read_lock(void) { pthread_rwlock_rdlock(&rwlock); STAY; }
static void timed_read_lock(void) { pthread_rwlock_timedrdlock(&rwlock, later(CLOCK_REALTIME)); STAY; }
static void write_lock(void) { pthread_rwlock_wrlock(&rwlock); STAY; }
static void unlock_rw(void) { pthread_rwlock_unlock(&rwlock); STAY; }
static void nothing(void) {}

/* The signal comes while its sender holds the mutex, and lets go of it at once. */
static void signal_it(void) { lock(); pthread_cond_signal(&condvar); unlock(); }
/* It holds the mutex on for 50 ms: the waiter waits for the signal, then for the mutex. */
static void signal_and_hold(void) { lock(); pthread_cond_signal(&condvar); }
static void wait_signal(void) { pthread_cond_wait(&condvar, &mutex); STAY; }
static void timed_wait_signal(void) { pthread_cond_timedwait(&condvar, &mutex, later(CLOCK_REALTIME)); STAY; }
static void signal_plain(void) { lock_plain(); cnd_signal(&plain_condvar); unlock_plain(); }
static void wait_plain(void) { cnd_wait(&plain_condvar, &plain_mutex); STAY; }
static void timed_wait_plain(void) { cnd_timedwait(&plain_condvar, &plain_mutex, later(CLOCK_REALTIME)); STAY; }

static void post(void) { sem_post(&semaphore); }
static void wait_post(void) { sem_wait(&semaphore); STAY; }
static void timed_wait_post(void) { sem_timedwait(&semaphore, later(CLOCK_REALTIME)); STAY; }
static void meet(void) { pthread_barrier_wait(&barrier); STAY; }
static void put(void) { if (write(pipe_ends[1], "x", 1) != 1) abort(); }
static void get(void) { char byte; if (read(pipe_ends[0], &byte, 1) != 1) abort(); STAY; }
static void get_polled(void) {
    struct pollfd end = {pipe_ends[0], POLLIN, 0};
    poll(&end, 1, -1);
    STAY;
}
static void sleep_held(void) { rest(HELD_NS); STAY; }

/* A new one for each turn. The holder comes first: it runs what is to be run once. Should the waiter do so, that is no wait. */
static pthread_once_t onces[100000];
static once_flag plain_onces[100000];
static volatile int turn;
static _Thread_local int is_waiter;
static void run_once(void) { if (!is_waiter) rest(HELD_NS); }
static void once(void) { pthread_once(&onces[turn], run_once); STAY; }
static void once_plain(void) { call_once(&plain_onces[turn], run_once); STAY; }

static pthread_t joined;
static thrd_t joined_plain;
static void *short_life(void *unused) { (void)unused; rest(HELD_NS); return NULL; }
static int short_plain(void *unused) { (void)unused; rest(HELD_NS); return 0; }
static void start(void) { pthread_create(&joined, NULL, short_life, NULL); }
static void start_plain(void) { thrd_create(&joined_plain, short_plain, NULL); }
static void join(void) { pthread_join(joined, NULL); STAY; }
static void join_plain(void) { thrd_join(joined_plain, NULL); STAY; }
#ifdef __GLIBC__
static void clocklock(void) { pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC)); STAY; }
static void clock_write_lock(void) { pthread_rwlock_clockwrlock(&rwlock, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC)); STAY; }
static void clock_wait_signal(void) { pthread_cond_clockwait(&condvar, &mutex, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC)); STAY; }
static void clock_wait_post(void) { sem_clockwait(&semaphore, CLOCK_MONOTONIC, later(CLOCK_MONOTONIC)); STAY; }
#endif
static void timedjoin(void) { pthread_timedjoin_np(joined, NULL, later(CLOCK_REALTIME)); STAY; }

/* `hold` and `release` are the other thread's, 50 ms apart; before, wait and after the waiter's. */
struct way {
    const char *name;
    void (*hold)(void), (*release)(void), (*before)(void), (*wait)(void), (*after)(void);
    const void *lock;
    /* The two threads go in step: the holder starts a turn when the waiter says so. */
    int in_step;
};
static const struct way ways[] = {
    {"mutex", lock, unlock, nothing, lock, unlock, &mutex, 0},
    {"timedlock", lock, unlock, nothing, timedlock, unlock, &mutex, 0},
    {"inheriting", lock_inheriting, unlock_inheriting, nothing, lock_inheriting, unlock_inheriting, &inheriting, 0},
    {"mtx", lock_plain, unlock_plain, nothing, lock_plain, unlock_plain, &plain_mutex, 0},
    {"mtx_timed", lock_plain, unlock_plain, nothing, timedlock_plain, unlock_plain, &plain_mutex, 0},
    {"rdlock", write_lock, unlock_rw, nothing, read_lock, unlock_rw, &rwlock, 0},
    {"wrlock", read_lock, unlock_rw, nothing, write_lock, unlock_rw, &rwlock, 0},
    {"wrlock_writer", write_lock, unlock_rw, nothing, write_lock, unlock_rw, &rwlock, 0},
    {"timedrdlock", write_lock, unlock_rw, nothing, timed_read_lock, unlock_rw, &rwlock, 0},
    {"once", once, nothing, nothing, once, nothing, NULL, 1},
    {"call_once", once_plain, nothing, nothing, once_plain, nothing, NULL, 1},
    {"condvar", nothing, signal_it, lock, wait_signal, unlock, NULL, 0},
    {"cond_lock", signal_and_hold, unlock, lock, wait_signal, unlock, &mutex, 0},
    {"timedcondvar", nothing, signal_it, lock, timed_wait_signal, unlock, NULL, 0},
    {"cnd", nothing, signal_plain, lock_plain, wait_plain, unlock_plain, NULL, 0},
    {"cnd_timed", nothing, signal_plain, lock_plain, timed_wait_plain, unlock_plain, NULL, 0},
    {"semaphore", nothing, post, nothing, wait_post, nothing, NULL, 0},
    {"timedsemaphore", nothing, post, nothing, timed_wait_post, nothing, NULL, 0},
    {"barrier", nothing, meet, nothing, meet, nothing, NULL, 0},
    {"join", nothing, nothing, start, join, nothing, NULL, 0},
    {"timedjoin", nothing, nothing, start, timedjoin, nothing, NULL, 0},
    {"thrd_join", nothing, nothing, start_plain, join_plain, nothing, NULL, 0},
    {"sleep", nothing, nothing, nothing, sleep_held, nothing, NULL, 0},
    {"storm", NULL, NULL, NULL, NULL, NULL, &mutex, 0},
    {"read", nothing, put, nothing, get, nothing, NULL, 0},
    {"poll", nothing, put, nothing, get_polled, get, NULL, 0},
#ifdef __GLIBC__
    {"clocklock", lock, unlock, nothing, clocklock, unlock, &mutex, 0},
    {"clockwrlock", read_lock, unlock_rw, nothing, clock_write_lock, unlock_rw, &rwlock, 0},
    {"clockcondvar", nothing, signal_it, lock, clock_wait_signal, unlock, NULL, 0},
    {"clocksemaphore", nothing, post, nothing, clock_wait_post, nothing, NULL, 0},
#endif
};
static const struct way *way;
static uint64_t waited_ns, waits, beside_locks;
static int waiter_tid, holder_tid;
static sem_t begin;

static void *hold(void *unused) {
    (void)unused;
    holder_tid = (int)syscall(SYS_gettid);
    while (!stop) {
        if (way->in_step) {
            turn = turn + 1;
            sem_post(&begin);
            way->hold();
            rest(5000000); /* the waiter has gone on by now */
            continue;
        }
        way->hold();
        rest(HELD_NS);
        way->release();
        rest(FREE_NS);
    }
    way->release();
    sem_post(&begin);
    return NULL;
}

static void *wait_for_it(void *unused) {
    (void)unused;
    waiter_tid = (int)syscall(SYS_gettid);
    is_waiter = 1;
    while (!stop) {
        if (way->in_step) {
            sem_wait(&begin);
            if (stop) break;
            rest(1000000);
        }
        way->before();
        const uint64_t before = now_ns();
        way->wait();
        const uint64_t took = now_ns() - before;
        way->after();
        if (took > 1000000) {
            waited_ns += took;
            waits++;
        }
        rest(200000);
    }
    return NULL;
}

static void *lock_alone(void *unused) {
    (void)unused;
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_rwlock_t own_rw = PTHREAD_RWLOCK_INITIALIZER;
    while (!stop) {
        pthread_mutex_lock(&own);
        STAY;
        pthread_mutex_unlock(&own);
        pthread_rwlock_rdlock(&own_rw);
        STAY;
        pthread_rwlock_unlock(&own_rw);
        beside_locks += 2;
    }
    return NULL;
}

/* Several threads that want one mutex, each holding it for a moment: more waits than stacks are taken of. */
#define STORM_THREADS 4
#define STORM_HELD_NS 300000
static pthread_t storms[STORM_THREADS];
static void *storm(void *unused) {
    (void)unused;
    uint64_t my_ns = 0, my_waits = 0;
    while (!stop) {
        const uint64_t before = now_ns();
        pthread_mutex_lock(&mutex);
        const uint64_t took = now_ns() - before;
        if (took > 50000) {
            my_ns += took;
            my_waits++;
        }
        rest(STORM_HELD_NS);
        pthread_mutex_unlock(&mutex);
    }
    __atomic_fetch_add(&waited_ns, my_ns, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&waits, my_waits, __ATOMIC_SEQ_CST);
    return NULL;
}

static void start_storm(void) {
    for (int i = 0; i < STORM_THREADS; i++) {
        pthread_create(&storms[i], NULL, storm, NULL);
        pthread_setname_np(storms[i], "waiter");
    }
}

static void end_storm(void) {
    for (int i = 0; i < STORM_THREADS; i++) pthread_join(storms[i], NULL);
}

static void prepare(void) {
    pthread_mutexattr_t inherits;
    pthread_mutexattr_init(&inherits);
    pthread_mutexattr_setprotocol(&inherits, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &inherits);
    mtx_init(&plain_mutex, mtx_timed);
    cnd_init(&plain_condvar);
    sem_init(&semaphore, 0, 0);
    sem_init(&begin, 0, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    if (pipe(pipe_ends) != 0) abort();
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strcmp(ways[i].name, arguments[1]) == 0) way = &ways[i];
    if (way == NULL) return 2;
    prepare();
    rest(BEFORE_NS); /* whoever watches has read by then what runs */
    pthread_t holder, waiter, beside;
    if (way->wait == NULL) {
        start_storm();
    } else {
        pthread_create(&holder, NULL, hold, NULL);
        pthread_create(&waiter, NULL, wait_for_it, NULL);
        pthread_setname_np(holder, "holder");
        pthread_setname_np(waiter, "waiter");
    }
    if (count > 3 && arguments[3][0] == '1') {
        pthread_create(&beside, NULL, lock_alone, NULL);
        pthread_setname_np(beside, "beside");
    }
    const long milliseconds = strtol(arguments[2], NULL, 10);
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
    stop = 1;
    rest(2 * (HELD_NS + FREE_NS));
    if (way->wait == NULL) end_storm();
    printf("{\"case\":\"%s\",\"pid\":%d,\"tid\":%d,\"holder\":%d,\"waited_ns\":%llu,\"waits\":%llu,\"lock\":%llu,\"beside\":%llu}\n", way->name,
           (int)getpid(), waiter_tid, holder_tid, (unsigned long long)waited_ns, (unsigned long long)waits,
           (unsigned long long)(uintptr_t)way->lock, (unsigned long long)beside_locks);
    fflush(stdout);
    _exit(0);
}
