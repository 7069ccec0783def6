/* The program runs out of memory that only a descriptor names: it copies itself there first. */
#include "chain.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }

static int again(char **arguments) {
    const int own = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const int copy = memfd_create(last_part(arguments[0]), MFD_CLOEXEC);
    if (own < 0 || copy < 0) return 1;
    while (sendfile(copy, own, NULL, 1 << 20) > 0) continue;
    char again[] = "again";
    char *with[] = {arguments[0], arguments[1], again, NULL};
    fexecve(copy, with, environ);
    return 1;
}

int main(int count, char **arguments) {
    ENTER;
    if (count == 2) return again(arguments);
    begin(count, arguments);
    volatile uint64_t v = middle(1);
    (void)v;
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return 0;
}
