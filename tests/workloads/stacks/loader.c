/* A chain through a library that is not where libraries are. Usage: PROGRAM MILLISECONDS LIBRARY.
 * MEMFD: opened from memory that only a descriptor names. DELETED: its file is gone. OFFSET: mapped by the program
 * itself out of a larger file, page by page, as programs load libraries out of archives. */
#include "chain.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

typedef unsigned long leaf(unsigned long n);
typedef unsigned long entry(leaf *call, const void **returns_to, unsigned long n);

enum { ARCHIVE_OFFSET = 5 * 4096 };

static entry *library_middle;
static const void *returns_to[2];

APART static uint64_t spin(uint64_t n) { ENTER_LEAF; return churn(n); }
APART static unsigned long inner(unsigned long n) {
    enter("library_middle", returns_to[0]);
    enter("library_inner", returns_to[1]);
    ENTER;
    uint64_t v = n;
    do v += spin(v); while (!spun_enough());
    STAY;
    return v + 1;
}
APART static uint64_t outer(uint64_t n) { ENTER; uint64_t v = library_middle(inner, returns_to, n); STAY; return v + 1; }

static void copy_to(int to, const char *file, off_t offset) {
    static char bytes[1 << 20];
    const int from = open(file, O_RDONLY | O_CLOEXEC);
    const ssize_t length = read(from, bytes, sizeof bytes);
    if (from < 0 || length <= 0 || pwrite(to, bytes, (size_t)length, offset) != length) exit(1);
    close(from);
}

static void *load(const char *file) {
    char path[4096];
#ifdef OFFSET
    snprintf(path, sizeof path, "%s.archive", file);
    const int archive = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (archive < 0 || pwrite(archive, "an archive, no executable\n", 26, 0) != 26) exit(1);
    copy_to(archive, file, ARCHIVE_OFFSET);
    ElfW(Ehdr) header;
    ElfW(Phdr) headers[16];
    if (pread(archive, &header, sizeof header, ARCHIVE_OFFSET) != sizeof header || header.e_phnum > 16) exit(1);
    const ssize_t size = (ssize_t)(header.e_phnum * sizeof headers[0]);
    if (pread(archive, headers, (size_t)size, ARCHIVE_OFFSET + (off_t)header.e_phoff) != size) exit(1);
    char *base = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) exit(1);
    for (int i = 0; i < header.e_phnum; i++) {
        const ElfW(Phdr) *it = &headers[i];
        if (it->p_type != PT_LOAD) continue;
        const uintptr_t before = it->p_vaddr & 4095;
        const int protection = (it->p_flags & PF_X) != 0 ? PROT_READ | PROT_EXEC : PROT_READ;
        if (mmap(base + it->p_vaddr - before, it->p_filesz + before, protection, MAP_PRIVATE | MAP_FIXED, archive,
                 ARCHIVE_OFFSET + (off_t)(it->p_offset - before)) == MAP_FAILED) exit(1);
    }
    own_start = own_base = (uintptr_t)base;
    own_end = own_start + (1 << 20);
    return base + header.e_entry;
#else
#ifdef MEMFD
    const int copy = memfd_create("stacks-library", 0);
    copy_to(copy, file, 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", copy);
#else
    snprintf(path, sizeof path, "%s.copy", file);
    const int copy = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    copy_to(copy, file, 0);
    close(copy);
#endif
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) exit(1);
#ifndef MEMFD
    if (unlink(path) != 0) exit(1);
#endif
    return dlsym(library, "library_middle");
#endif
}

int main(int count, char **arguments) {
    ENTER;
    begin(count, arguments);
    if (count < 3) return 2;
    void *loaded = load(arguments[2]);
    if (loaded == NULL) return 1;
    memcpy(&library_middle, &loaded, sizeof loaded);
    volatile uint64_t v = outer(1);
    (void)v;
    enter_leaf("spin");
    is_leaf();
    print_truth();
    return 0;
}
