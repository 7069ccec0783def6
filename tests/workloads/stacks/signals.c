/* The leaf is interrupted by a signal whose handler spins; compiled with ALTERNATE, on a stack of its own. */
#include "chain.h"
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t handled;

APART static uint64_t handler_spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static void handler(int number) {
    enter_leaf("spin");
    is_leaf(); /* it was interrupted at any of its instructions */
    innermost = "";
    ENTER; /* returns to the C library's restorer, which has no name */
    uint64_t v = (uint64_t)number;
    do v += handler_spin(v); while (!spun_enough());
    enter_leaf("handler_spin");
    is_leaf();
    print_truth();
    handled = 1;
}

APART static uint64_t spin(uint64_t n) {
    ENTER_LEAF;
    uint64_t v = n;
    while (!handled) {
        v = v * 6364136223846793005u + 1;
        __asm__ volatile("" : "+r"(v));
    }
    return v;
}
APART static uint64_t inner(uint64_t n) { ENTER; uint64_t v = spin(n); STAY; return v + 1; }
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    struct sigaction action = {0};
    action.sa_handler = handler;
#ifdef ALTERNATE
    static char room[64 * 1024];
    const stack_t stack = {room, 0, sizeof room};
    if (sigaltstack(&stack, NULL) != 0) return 1;
    action.sa_flags = SA_ONSTACK;
#endif
    if (sigaction(SIGALRM, &action, NULL) != 0) return 1;
    const struct itimerval timer = {{0, 0}, {0, 50000}};
    if (setitimer(ITIMER_REAL, &timer, NULL) != 0) return 1;
    volatile uint64_t v = outer(1);
    (void)v;
    return 0;
}
