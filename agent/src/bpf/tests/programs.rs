//! C programs with known stacks. All of them run until they are killed.

/// Deep recursion with variable frames, and a leaf behind a comparator of the C library.
pub(super) const DEEP: &str = r#"
#include <alloca.h>
#include <stdlib.h>
#include <string.h>
volatile unsigned long sink;
static __attribute__((noinline)) void burn(int n) { for (int i = 0; i < n; i++) sink += i * i; }
static __attribute__((noinline)) int compare(const void *a, const void *b) {
    burn(40);
    return *(const int *)a - *(const int *)b;
}
static __attribute__((noinline)) int deep(int n, char *p) {
    char *more = alloca(n * 8 + 16);
    memset(more, n, n * 8 + 16);
    if (n == 0) {
        int values[64];
        for (int i = 0; i < 64; i++) values[i] = (i * 37) % 64;
        qsort(values, 64, sizeof(int), compare);
        burn(1000);
        return values[3] + more[0];
    }
    return deep(n - 1, more) + more[n] + (p ? p[0] : 0);
}
int main(void) { for (;;) sink += deep(20, 0); }
"#;

/// Most of its time is in the kernel.
pub(super) const SYSTEM_CALLS: &str = r#"
#include <fcntl.h>
#include <unistd.h>
static char buffer[1 << 20];
static __attribute__((noinline)) long fill(int fd) { return read(fd, buffer, sizeof buffer) + 1; }
int main(void) {
    int fd = open("/dev/zero", O_RDONLY);
    long total = 0;
    for (;;) total += fill(fd);
}
"#;

/// Burns in a signal handler on a stack of its own, which interrupted `victim`.
pub(super) const SIGNAL: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
volatile unsigned long sink;
static __attribute__((noinline)) void in_handler(void) { for (int i = 0; i < 8000000; i++) sink += i; }
static void handler(int signal) { in_handler(); sink += signal; }
static __attribute__((noinline)) void victim(void) { for (;;) sink++; }
int main(void) {
    stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
    sigaltstack(&stack, 0);
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
    sigaction(SIGALRM, &action, 0);
    struct itimerval every = { { 0, 10000 }, { 0, 10000 } };
    setitimer(ITIMER_REAL, &every, 0);
    victim();
}
"#;

/// `DEPTH` frames of recursion; a tenth of the time is spent in `shallow` instead.
pub(super) const VERY_DEEP: &str = r#"
volatile unsigned long sink;
static __attribute__((noinline)) void shallow(void) { for (int i = 0; i < 1000000; i++) sink += i; }
static __attribute__((noinline)) unsigned long down(int n) {
    if (n == 0) { for (int i = 0; i < 10000000; i++) sink += i; return sink; }
    unsigned long below = down(n - 1);
    sink += below; // keeps the compiler from making a loop of it
    return below + n;
}
int main(void) { for (;;) { shallow(); sink += down(DEPTH); } }
"#;

/// Burns, and executes itself again at each SIGUSR1.
pub(super) const EXEC_AGAIN: &str = r#"
#include <signal.h>
#include <unistd.h>
volatile unsigned long sink;
volatile sig_atomic_t again;
static void handler(int signal) { again = signal; }
int main(int argc, char **argv) {
    signal(SIGUSR1, handler);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    while (!again) sink += argc;
    execv(argv[0], argv);
    return 1;
}
"#;

/// Nearly all of its time is in one function, at a known address (section `.hot`), whose return address is in
/// rdi (`RETURN_REGISTER`, as in the C library's vfork) or whose caller's stack pointer is in r10
/// (`LEAF_REGISTER`).
pub(super) const REGISTER_RULES: &str = r#"
void hot(void);
asm(".pushsection .hot,\"ax\",@progbits\n.globl hot\n.type hot,@function\nhot:\n"
#ifdef RETURN_REGISTER
    "pop %rdi\n mov $100000000, %ecx\n 1: dec %ecx\n jnz 1b\n push %rdi\n ret\n"
#else
    "lea 8(%rsp), %r10\n sub $4096, %rsp\n and $-64, %rsp\n mov $100000000, %ecx\n"
    "1: dec %ecx\n jnz 1b\n lea -8(%r10), %rsp\n ret\n"
#endif
    ".size hot, .-hot\n.popsection");
int main(void) { for (;;) hot(); }
"#;

/// Forks children, one after the other, which burn 4 ms each.
pub(super) const CHILDREN: &str = r#"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile unsigned long sink;
static long spent_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
int main(void) {
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            while (spent_ns() < 4000000) for (int i = 0; i < 10000; i++) sink += i;
            _exit(0);
        }
        waitpid(child, 0, 0);
    }
}
"#;

/// Threads that end as soon as they begin.
pub(super) const THREADS: &str = r#"
#include <pthread.h>
static void *nothing(void *argument) { return argument; }
int main(void) {
    pthread_t threads[64];
    for (;;) {
        for (int i = 0; i < 64; i++) if (pthread_create(&threads[i], 0, nothing, 0) != 0) return 1;
        for (int i = 0; i < 64; i++) pthread_join(threads[i], 0);
    }
}
"#;
