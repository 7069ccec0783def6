/* A child of vfork(2) spins on its parent's stack before it would execute something. Compiled with LOOP, the parent
 * makes children that end at once: then its own time is spent in the system call, where the C library holds the
 * return address in a register. */
#include "chain.h"
#include <sys/wait.h>

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }

/* The child shares memory and stack with its parent, which waits for its end. */
APART static uint64_t child(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return v;
}

APART static uint64_t inner(uint64_t n) {
    ENTER;
#ifdef LOOP
    do {
        for (int i = 0; i < 20; i++) {
            const pid_t pid = vfork();
            if (pid == 0) _exit(0);
            waitpid(pid, NULL, 0);
        }
    } while (!spun_enough());
#else
    const pid_t pid = vfork();
    if (pid == 0) {
        child(n);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
#endif
    STAY;
    return n + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    volatile uint64_t v = outer(1);
    (void)v;
#ifdef LOOP
    (void)child;
    is_leaf();
    print_truth();
#endif
    return 0;
}
