/* Assembly as OpenSSL's: the caller's stack pointer lies in memory, at a place that only an expression describes. */
#include "chain.h"

uint64_t kernel_by_expression(uint64_t n, const void **returns_to);
uint64_t kernel_by_register(uint64_t n, const void **returns_to);

/* As sha512_block_data_order: rsp is kept in rax, the stack aligned to 64 bytes, rax stored at 152(%rsp), rbx and
 * rbp below the return address. CFA = *(rsp + 152) + 8. The saved registers are described relative to the CFA. */
__asm__(
    ".text\n"
    ".type kernel_by_expression, @function\n"
    "kernel_by_expression:\n"
    ".cfi_startproc\n"
    "movq (%rsp), %rax\n"
    "movq %rax, (%rsi)\n"
    "movq %rsp, %rax\n"
    ".cfi_def_cfa_register %rax\n"
    "pushq %rbx\n"
    ".cfi_offset %rbx, -16\n"
    "pushq %rbp\n"
    ".cfi_offset %rbp, -24\n"
    "subq $200, %rsp\n"
    "andq $-64, %rsp\n"
    "movq %rax, 152(%rsp)\n"
    /* DW_CFA_def_cfa_expression, 6 bytes: breg7 152, deref, plus_uconst 8 */
    ".cfi_escape 0x0f, 0x06, 0x77, 0x98, 0x01, 0x06, 0x23, 0x08\n"
    "movq $77, %rbp\n" /* used as any other register */
    "0: imulq %rdi, %rbp\n"
    "decq %rdi\n"
    "jnz 0b\n"
    "movq 152(%rsp), %rsi\n"
    ".cfi_def_cfa %rsi, 8\n"
    "movq %rbp, %rax\n"
    "movq -16(%rsi), %rbp\n"
    ".cfi_restore %rbp\n"
    "movq -8(%rsi), %rbx\n"
    ".cfi_restore %rbx\n"
    "leaq (%rsi), %rsp\n"
    ".cfi_def_cfa_register %rsp\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size kernel_by_expression, .-kernel_by_expression\n");

/* As OpenSSL's for Montgomery multiplication of small numbers: the old stack pointer stays in a register. */
__asm__(
    ".text\n"
    ".type kernel_by_register, @function\n"
    "kernel_by_register:\n"
    ".cfi_startproc\n"
    "movq (%rsp), %rax\n"
    "movq %rax, (%rsi)\n"
    "movq %rsp, %rax\n"
    ".cfi_def_cfa_register %rax\n"
    "subq $300, %rsp\n"
    "andq $-64, %rsp\n"
    "movq $77, %rdx\n"
    "0: imulq %rdi, %rdx\n"
    "decq %rdi\n"
    "jnz 0b\n"
    "movq %rax, %rsp\n"
    ".cfi_def_cfa_register %rsp\n"
    "movq %rdx, %rax\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size kernel_by_register, .-kernel_by_register\n");

#ifdef BY_REGISTER
#define KERNEL kernel_by_register
#define NAME "kernel_by_register"
#else
#define KERNEL kernel_by_expression
#define NAME "kernel_by_expression"
#endif

static const void *returns_to;

APART static uint64_t inner(uint64_t n) {
    ENTER;
    uint64_t v = n;
    do v += KERNEL(1000000, &returns_to); while (!spun_enough());
    STAY;
    return v + 1;
}

#define LEAF_ENTERED enter(NAME, returns_to)
#include "callers.h"
