/* Code made at run time in anonymous memory, with frame pointers and no other information: C calls `jit_caller`, which
 * calls `jit_leaf`, which spins. Their names are in a perf map. */
#include "chain.h"
#include <sys/mman.h>

static const unsigned char CALLER[] = {
    0x55,                               /* push rbp */
    0x48, 0x89, 0xe5,                   /* mov rbp, rsp */
    0x48, 0x83, 0xec, 0x20,             /* sub rsp, 32 */
    0x48, 0x8b, 0x45, 0x08,             /* mov rax, [rbp + 8] */
    0x48, 0x89, 0x06,                   /* mov [rsi], rax: whom it returns to */
    0xe8, 0x09, 0x00, 0x00, 0x00,       /* call leaf (at 32) */
    0x48, 0x83, 0xc4, 0x20,             /* add rsp, 32 */
    0x5d,                               /* pop rbp */
    0xc3,                               /* ret */
    0x90, 0x90, 0x90,
};
enum { LEAF_AT = 32, BEHIND_CALL = 20 };
static const unsigned char LEAF[] = {
    0x55,                               /* push rbp */
    0x48, 0x89, 0xe5,                   /* mov rbp, rsp */
    0x48, 0x89, 0xf8,                   /* mov rax, rdi */
    0x48, 0x0f, 0xaf, 0xc7,             /* imul rax, rdi */
    0x48, 0xff, 0xcf,                   /* dec rdi */
    0x75, 0xf7,                         /* jnz imul */
    0x5d,                               /* pop rbp */
    0xc3,                               /* ret */
};

static uint64_t (*jitted)(uint64_t, const void **);
static const void *returns_to;

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += jitted(1000000, &returns_to); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t middle(uint64_t n) { ENTER; uint64_t v = inner(n); STAY; return v + 1; }
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = middle(n); STAY; return v + 1; }

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return 1;
    memcpy(code, CALLER, sizeof CALLER);
    memcpy(code + LEAF_AT, LEAF, sizeof LEAF);
    const int32_t distance = LEAF_AT - BEHIND_CALL;
    memcpy(code + BEHIND_CALL - 4, &distance, sizeof distance);
    if (mprotect(code, 4096, PROT_READ | PROT_EXEC) != 0) return 1;
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "w");
    if (map == NULL) return 1;
    fprintf(map, "%lx %x jit_caller\n%lx %x jit_leaf\n", (unsigned long)(uintptr_t)code, LEAF_AT,
            (unsigned long)(uintptr_t)(code + LEAF_AT), (unsigned)sizeof LEAF);
    fclose(map);
    jitted = (uint64_t (*)(uint64_t, const void **))(uintptr_t)code;
    volatile uint64_t v = outer(1);
    (void)v;
    enter("jit_caller", returns_to);
    enter("jit_leaf", code + BEHIND_CALL);
    is_leaf();
    print_truth();
    sleep(6); /* the names are read when a window ends, each five seconds */
    unlink(path);
    return 0;
}
