#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hooks.h"

#define MAX_FORGETTERS 8

enum { UNKNOWN, READY, UNUSABLE };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int state = UNKNOWN;
static allot_session session = {.account = ALLOT_ACCOUNT_NONE};
/* Two, so that who reads one is not disturbed while the other is read anew. */
static allot_limits both[2];
static _Atomic uint32_t generation;
static void (*forgetters[MAX_FORGETTERS])(void);
static int num_forgetters;
static __thread int depth;

int allot_is_inside(void) { return depth; }
void allot_enter(void) { depth++; }
void allot_leave(void) { depth--; }

/* Our own file's folder and owner: who can put it there may also say what the limits are. */
static const char *limits_path(unsigned *owner)
{
    static char path[ALLOT_PATH_MAX];
    struct stat own;
    Dl_info info;
    *owner = 0;
    if (dladdr((void *)limits_path, &info) && info.dli_fname && stat(info.dli_fname, &own) == 0)
        *owner = own.st_uid;
#ifdef ALLOT_BESIDE
    const char *slash = info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    snprintf(path, sizeof path, "%.*s/limits", slash ? (int)(slash - info.dli_fname) : 1,
             slash ? info.dli_fname : ".");
#else
    snprintf(path, sizeof path, "%s/limits", ALLOT_PREFIX);
#endif
    return path;
}

static void in_child(void)
{
    /* Another thread may have held it. */
    pthread_mutex_init(&mutex, NULL);
    /* Also where another thread was just attaching: it has the file, and perhaps a slot. */
    allot_account_drop(&session.account);
    state = UNKNOWN;
    depth = 0;
    for (int i = 0; i < num_forgetters; i++)
        forgetters[i]();
}

void allot_session_on_fork(void (*forget)(void))
{
    if (num_forgetters < MAX_FORGETTERS)
        forgetters[num_forgetters++] = forget;
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static int attach(void)
{
    const char *why = "all slots of the region are taken";
    unsigned owner;
    const char *path = limits_path(&owner);
    if (allot_limits_read(&both[0], path, owner, &why) != 0)
        goto unusable;
    session.limits = &both[0];
    if (allot_account_open(&session.account, both[0].region, &why) != 0)
        goto unusable;
    atomic_store(&generation, atomic_load(&session.account.map->generation));
    if (allot_account_join(&session.account) == 0)
        return READY;
    allot_account_drop(&session.account);
unusable:
    /* Nothing may be allocated then, and somebody should learn why. */
    fprintf(stderr, "allot: no GPU can be used: %s (%s)\n", why, path);
    return UNUSABLE;
}

/* Root has written the limits anew. What cannot be read leaves the old ones in force. */
static void read_again(uint32_t seen)
{
    const char *why;
    unsigned owner;
    const char *path = limits_path(&owner);
    allot_limits *other = session.limits == &both[0] ? &both[1] : &both[0];
    if (allot_limits_read(other, path, owner, &why) == 0)
        session.limits = other;
    atomic_store(&generation, seen);
}

allot_session *allot_session_get(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == UNKNOWN) {
        pthread_mutex_lock(&mutex);
        if (state == UNKNOWN)
            atomic_store(&state, attach());
        now = state;
        pthread_mutex_unlock(&mutex);
    }
    if (now != READY)
        return NULL;
    uint32_t seen = atomic_load_explicit(&session.account.map->generation, memory_order_relaxed);
    if (seen != atomic_load_explicit(&generation, memory_order_relaxed)) {
        pthread_mutex_lock(&mutex);
        if (seen != generation)
            read_again(seen);
        pthread_mutex_unlock(&mutex);
    }
    return &session;
}
