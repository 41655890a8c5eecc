/* For where nothing can be mounted: hooks dlsym and dlvsym, so that callers who look functions up
 * get ours. Misses RTLD_DEEPBIND, dlmopen and static programs; links to nothing of CUDA's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"

typedef void *(*dlsym_fn)(void *, const char *);
typedef void *(*dlvsym_fn)(void *, const char *, const char *);

static uint32_t gnu_hash(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The definition of a name in one object, found by hand: immune to other hooks. */
static void *lookup(const struct dl_phdr_info *object, const char *name)
{
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry =
            (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_SYMTAB)
                symbols = (const void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRTAB)
                strings = (const void *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_GNU_HASH)
                table = (const void *)entry->d_un.d_ptr;
        }
    }
    if (!symbols || !strings || !table)
        return NULL;
    const uint32_t num_buckets = table[0], offset = table[1], bloom = table[2];
    const uint32_t *buckets = table + 4 + bloom * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chains = buckets + num_buckets;
    const uint32_t hash = gnu_hash(name);
    for (uint32_t i = buckets[hash % num_buckets]; i >= offset; i++) {
        const ElfW(Sym) *symbol = &symbols[i];
        if ((chains[i - offset] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            strcmp(strings + symbol->st_name, name) == 0)
            return (void *)(object->dlpi_addr + symbol->st_value);
        if (chains[i - offset] & 1)
            break;
    }
    return NULL;
}

typedef struct { const char *name; void *found; } search;

static int in_libc(struct dl_phdr_info *object, size_t size, void *argument)
{
    search *wanted = argument;
    const char *file = strrchr(object->dlpi_name, '/');
    (void)size;
    file = file ? file + 1 : object->dlpi_name;
    if (strncmp(file, "libc.so", 7) && strncmp(file, "libc-", 5) && strncmp(file, "libdl", 5))
        return 0;
    wanted->found = lookup(object, wanted->name);
    return wanted->found != NULL;
}

static void *libcs(const char *name)
{
    search wanted = {name, NULL};
    dl_iterate_phdr(in_libc, &wanted);
    return wanted.found;
}

static dlsym_fn _Atomic real_dlsym;
static dlvsym_fn _Atomic real_dlvsym;

void *allot_plain_dlsym(void *handle, const char *name)
{
    dlsym_fn real = real_dlsym;
    if (!real)
        real_dlsym = real = (dlsym_fn)libcs("dlsym");
    return real(handle, name);
}

/* Our hook for what was found, or what was found: only the driver's own functions are replaced. */
static void *ours(const char *name, void *found)
{
    if (strncmp(name, "cu", 2) == 0) {
        for (unsigned i = 0; i < allot_cuda_num_hooks; i++)
            if (strcmp(allot_cuda_hooks[i].symbol, name) == 0)
                return allot_real_cuda(i) == found ? allot_cuda_hooks[i].hook : found;
    } else if (strncmp(name, "nvml", 4) == 0) {
        for (unsigned i = 0; i < allot_nvml_num_hooks; i++)
            if (strcmp(allot_nvml_hooks[i].symbol, name) == 0)
                return allot_real_nvml(i) == found ? allot_nvml_hooks[i].hook : found;
    }
    return found;
}

static int is_candidate(void *handle, const char *name)
{
    return handle != RTLD_NEXT && name && (strncmp(name, "cu", 2) == 0 || strncmp(name, "nvml", 4) == 0);
}

/* RTLD_NEXT is resolved by the return address, so the way through must be a jump: built with
 * optimisation, these calls in the last place are. */
ALLOT_EXPORT void *dlsym(void *handle, const char *name)
{
    dlsym_fn real = real_dlsym;
    if (__builtin_expect(!real, 0))
        real_dlsym = real = (dlsym_fn)libcs("dlsym");
    if (!is_candidate(handle, name))
        return real(handle, name);
    void *found = real(handle, name);
    return found ? ours(name, found) : found;
}

ALLOT_EXPORT void *dlvsym(void *handle, const char *name, const char *version)
{
    dlvsym_fn real = real_dlvsym;
    if (__builtin_expect(!real, 0))
        real_dlvsym = real = (dlvsym_fn)libcs("dlvsym");
    if (!is_candidate(handle, name))
        return real(handle, name, version);
    void *found = real(handle, name, version);
    return found ? ours(name, found) : found;
}
