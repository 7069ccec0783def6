/* Both halves of a lazy stub: before and after it pushes its number. The stub is written here as GNU ld writes those
 * of .plt, with the same expression (CFA = rsp + 8 + ((rip & 15) >= 11 ? 8 : 0)), and lingers in both halves. */
#include "chain.h"

uint64_t stub(uint64_t before, uint64_t after);
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".type stub, @function\n"
    "stub:\n"
    ".cfi_startproc\n"
    /* DW_CFA_def_cfa_expression, 11 bytes: breg7 8, breg16 0, lit15, and, lit11, ge, lit3, shl, plus */
    ".cfi_escape 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22\n"
    "0: dec %rdi\n"       /* 0: three bytes */
    "jnz 0b\n"            /* 3: two bytes */
    "nop\n"               /* 5 */
    "pushq $0x12345678\n" /* 6: five bytes */
    "1: dec %esi\n"       /* 11: two bytes, pushed from here on */
    "jnz 1b\n"            /* 13: two bytes */
    "nop\n"               /* 15 */
    "addq $8, %rsp\n"     /* 16: popped, and the expression starts anew */
    "ret\n"
    ".cfi_endproc\n"
    ".size stub, .-stub\n");

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += stub(1000000, 1000000); while (!spun_enough());
    STAY;
    return v + 1;
}

/* The stub cannot say whom it returns to: behind the call in `inner` it is found by looking for it. */
static const void *behind_call(const unsigned char *code) {
    for (int i = 0; i < 200; i++) {
        int32_t distance;
        memcpy(&distance, code + i + 1, sizeof distance);
        if (code[i] == 0xe8 && code + i + 5 + distance == (const unsigned char *)&stub) return code + i + 5;
    }
    abort();
}

#define LEAF_ENTERED enter("stub", behind_call((const unsigned char *)&inner))
#include "callers.h"
