#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A process that was stopped in the middle must not hold others for longer. */
#define SCARCE_NS 500000000u
#define SCARCE_PAUSE_NS 100000
#define PENDING_TRIES 2000
/* A look for the dead asks the kernel about each process; who only wants to know how much is used
 * shares one with all others of its session. */
#define SWEEP_EVERY_NS 5000000u

static int set_lock(int fd, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static void pause_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int allot_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    /* A program that has closed its standard streams opens others in their place, unasked. */
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return higher;
}

int allot_is_file(int fd, uint64_t device, uint64_t inode)
{
    struct stat found;
    return fd >= 0 && fstat(fd, &found) == 0 && (uint64_t)found.st_dev == device &&
           (uint64_t)found.st_ino == inode;
}

int allot_account_open(allot_account *account, const char *path, const char **why)
{
    struct stat found;
    account->slot = -1;
    account->map = NULL;
    pthread_mutex_init(&account->mutex, NULL);
    account->fd = allot_open(path);
    if (account->fd < 0) {
        *why = "the region cannot be opened";
        return -1;
    }
    if (fstat(account->fd, &found) != 0 || !S_ISREG(found.st_mode) ||
        found.st_size < (off_t)sizeof(allot_region)) {
        *why = "the region is no file of the right size";
        goto fail;
    }
    account->device = (uint64_t)found.st_dev;
    account->inode = (uint64_t)found.st_ino;
    void *map = mmap(NULL, sizeof(allot_region), PROT_READ | PROT_WRITE, MAP_SHARED, account->fd, 0);
    if (map == MAP_FAILED) {
        *why = "the region cannot be mapped";
        goto fail;
    }
    account->map = map;
    if (account->map->magic == ALLOT_REGION_MAGIC && account->map->version == ALLOT_REGION_VERSION)
        return 0;
    *why = "the region is of another format";
    munmap(map, sizeof(allot_region));
    account->map = NULL;
fail:
    close(account->fd);
    account->fd = -1;
    return -1;
}

static void empty_slot(allot_region *map, int slot)
{
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        /* Most pages of the file are holes: reading one costs less than writing it. */
        if (atomic_load(&map->used[gpu][slot]))
            atomic_store(&map->used[gpu][slot], 0);
        if (atomic_load(&map->pending[gpu][slot]))
            atomic_store(&map->pending[gpu][slot], 0);
        if (atomic_load(&map->saved[gpu][slot]))
            atomic_store(&map->saved[gpu][slot], 0);
        if (atomic_load(&map->context[gpu][slot]))
            atomic_store(&map->context[gpu][slot], 0);
        if (atomic_load(&map->measured[gpu][slot]))
            atomic_store(&map->measured[gpu][slot], 0);
    }
    allot_region_process *process = &map->processes[slot];
    atomic_store(&process->pid, 0);
    atomic_store(&process->checkpoint_state, 0);
    atomic_store(&process->busy_until, 0);
    atomic_store(&process->gpu_ns, 0);
    atomic_store(&process->contexts, 0);
    atomic_store(&process->is_broken, 0);
    atomic_store(&process->flags, 0);
}

int allot_account_join(allot_account *account)
{
    allot_region *map = account->map;
    struct stat space;
    for (int slot = 0; slot < ALLOT_MAX_SLOTS; slot++) {
        if (set_lock(account->fd, F_WRLCK, ALLOT_LOCK_SLOTS + slot) != 0)
            continue;
        empty_slot(map, slot);
        uint32_t high = atomic_load(&map->high_slot);
        while (high < (uint32_t)slot + 1 &&
               !atomic_compare_exchange_weak(&map->high_slot, &high, (uint32_t)slot + 1))
            ;
        atomic_store(&map->processes[slot].pid_namespace,
                     stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0);
        atomic_store(&map->processes[slot].pid, (uint32_t)getpid());
        account->slot = slot;
        return 0;
    }
    return -1;
}

void allot_account_drop(allot_account *account)
{
    if (account->map)
        munmap(account->map, sizeof(allot_region));
    /* An inherited copy of the descriptor would keep the parent's slot alive. */
    if (allot_is_file(account->fd, account->device, account->inode))
        close(account->fd);
    account->map = NULL;
    account->fd = -1;
    account->slot = -1;
    pthread_mutex_init(&account->mutex, NULL);
}

static int high_slot(const allot_region *map)
{
    uint32_t high = atomic_load(&map->high_slot);
    return high < ALLOT_MAX_SLOTS ? (int)high : ALLOT_MAX_SLOTS;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* Granted and asked for by all. `pending` is read before `used`: a grant is written the other way
 * round, so that it may be counted twice for a moment but is never missed. */
static uint64_t claimed(const allot_region *map, unsigned gpu)
{
    uint64_t sum = 0;
    for (int slot = 0, high = high_slot(map); slot < high; slot++) {
        sum = plus(sum, atomic_load(&map->pending[gpu][slot]));
        sum = plus(sum, atomic_load(&map->used[gpu][slot]));
    }
    return sum;
}

static uint64_t granted(const allot_region *map, unsigned gpu)
{
    uint64_t sum = 0;
    for (int slot = 0, high = high_slot(map); slot < high; slot++)
        sum = plus(sum, atomic_load(&map->used[gpu][slot]));
    return sum;
}

int allot_account_is_alive(const allot_account *account, int slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET,
                         .l_start = ALLOT_LOCK_SLOTS + slot, .l_len = 1};
    /* Our own lock does not conflict with us. */
    if (slot == account->slot)
        return 1;
    return fcntl(account->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Empties the slots of the dead. The slot is held meanwhile: a newcomer who took it between the
 * look and the writing would lose what it had reserved. Under the mutex: the locks are those of the
 * whole process, so that of two threads the first to end would let go what the second holds. On a
 * file of the program's own nobody holds a lock. */
static int sweep(allot_account *account)
{
    allot_region *map = account->map;
    int num_swept = 0;
    if (!allot_is_file(account->fd, account->device, account->inode))
        return 0;
    for (int slot = 0, high = high_slot(map); slot < high; slot++) {
        uint64_t held = 0;
        for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++)
            held |= atomic_load(&map->used[gpu][slot]) | atomic_load(&map->pending[gpu][slot]);
        if (!held || slot == account->slot ||
            set_lock(account->fd, F_WRLCK, ALLOT_LOCK_SLOTS + slot) != 0)
            continue;
        empty_slot(map, slot);
        set_lock(account->fd, F_UNLCK, ALLOT_LOCK_SLOTS + slot);
        num_swept++;
    }
    return num_swept;
}

int allot_account_sweep(allot_account *account)
{
    pthread_mutex_lock(&account->mutex);
    int num_swept = sweep(account);
    pthread_mutex_unlock(&account->mutex);
    return num_swept;
}

static void grant(allot_account *account, unsigned gpu, uint64_t n)
{
    atomic_fetch_add(&account->map->used[gpu][account->slot], n);
    atomic_store(&account->map->pending[gpu][account->slot], 0);
}

/* Little is left: one process at a time, so that of two who race for the last bytes one wins. The
 * lock orders, it does not protect: who cannot get it in time goes on, and is safe without. */
static int reserve_scarce(allot_account *account, unsigned gpu, uint64_t n, uint64_t limit)
{
    allot_region *map = account->map;
    _Atomic uint64_t *pending = &map->pending[gpu][account->slot];
    int is_reserved = 0, is_ordered = 0;
    for (uint64_t began = now_ns(); !is_ordered && now_ns() - began < SCARCE_NS;) {
        is_ordered = set_lock(account->fd, F_WRLCK, ALLOT_LOCK_SCARCE) == 0;
        if (!is_ordered)
            pause_ns(SCARCE_PAUSE_NS);
    }
    atomic_store(pending, n);
    for (int i = 0; i < PENDING_TRIES; i++) {
        if (claimed(map, gpu) <= limit) {
            grant(account, gpu, n);
            is_reserved = 1;
            break;
        }
        if (sweep(account))
            continue;
        if (plus(granted(map, gpu), n) > limit)
            break;
        /* Somebody asks for too much at this moment, and will notice. */
        if (i < 10)
            sched_yield();
        else
            pause_ns(SCARCE_PAUSE_NS);
    }
    atomic_store(pending, 0);
    if (is_ordered)
        set_lock(account->fd, F_UNLCK, ALLOT_LOCK_SCARCE);
    return is_reserved;
}

/* Ask (`pending`), then look at everybody: whoever of two looks last sees the other, so what is
 * granted never exceeds the limit; no lock, hence some 50 ns. Only a miss takes the slow way. */
int allot_account_reserve(allot_account *account, unsigned gpu, uint64_t n, uint64_t limit)
{
    if (account->slot < 0 || gpu >= ALLOT_MAX_GPUS || n > limit)
        return 0;
    if (n == 0)
        return 1;
    pthread_mutex_lock(&account->mutex);
    _Atomic uint64_t *pending = &account->map->pending[gpu][account->slot];
    atomic_store(pending, n);
    int is_reserved = claimed(account->map, gpu) <= limit;
    if (is_reserved) {
        grant(account, gpu, n);
    } else {
        atomic_store(pending, 0);
        is_reserved = reserve_scarce(account, gpu, n, limit);
    }
    pthread_mutex_unlock(&account->mutex);
    return is_reserved;
}

void allot_account_add(allot_account *account, unsigned gpu, uint64_t n)
{
    if (account->slot >= 0 && gpu < ALLOT_MAX_GPUS)
        atomic_fetch_add(&account->map->used[gpu][account->slot], n);
}

void allot_account_release(allot_account *account, unsigned gpu, uint64_t n)
{
    if (account->slot < 0 || gpu >= ALLOT_MAX_GPUS)
        return;
    _Atomic uint64_t *used = &account->map->used[gpu][account->slot];
    uint64_t now = atomic_load(used);
    while (!atomic_compare_exchange_weak(used, &now, now > n ? now - n : 0))
        ;
}

uint64_t allot_account_used(allot_account *account, unsigned gpu)
{
    if (!account->map || gpu >= ALLOT_MAX_GPUS)
        return 0;
    uint64_t now = now_ns(), then = atomic_load(&account->map->swept_at);
    /* Who has the mutex is about to look for the dead itself, or will not take long. */
    if (now - then >= SWEEP_EVERY_NS && pthread_mutex_trylock(&account->mutex) == 0) {
        atomic_store(&account->map->swept_at, now);
        sweep(account);
        pthread_mutex_unlock(&account->mutex);
    }
    return granted(account->map, gpu);
}

uint64_t allot_account_own(const allot_account *account, unsigned gpu)
{
    return account->slot < 0 ? 0 : atomic_load(&account->map->used[gpu][account->slot]);
}
