/* Compute share: sessions on one device launch kernels in turns, each turn's GPU time charged to
 * its session, and the turn goes to who has had the least in proportion to its weight.
 *
 * The device's file is read and written, never mapped (a neighbour may cut it short), and holds
 * per session what it has used. Who has the turn holds an OFD lock on its first byte; who waits
 * holds one on its own byte. So a SIGKILL passes the turn on. It orders those who take part; it is
 * no boundary.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"

#define QUANTUM_NS 10000000ull
#define LOOK_EVERY_NS 200000l
/* Without any turn for so long (a neighbour was stopped in the middle) a call goes on as it is. */
#define PATIENCE_NS 2000000000ull
#define MAX_SESSIONS 64
#define TURN_BYTE (1l << 20)
#define WAITING_BYTES ((1l << 20) + 1)
#define BUSY_BYTES ((1l << 20) + 1 + MAX_SESSIONS)

/* Of one session in the file: GPU time by its weight; when it was first seen (strict). */
typedef struct {
    uint64_t virtual_ns, used_ns, since_ns, spare;
} account;

static _Atomic int num_captures;
/* A device each, with a mutex each: at a turn's end its kernels are waited for under it, and these
 * may wait for what the same program launches on another device (NCCL). */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t begun;
    int fd, is_held, is_off, is_busy, is_watched;
    uint64_t device, inode; /* of the file, by which `fd` is known to be it still */
    int is_impatient; /* waited in vain the last time: only asks, until a turn is to be had again */
    uint64_t began, until;
    _Atomic uint64_t last_launch;
    CUcontext context; /* that of the turn's first launch; NULL once it is gone */
} turn[ALLOT_MAX_GPUS] = {
    [0 ... ALLOT_MAX_GPUS - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                                  .begun = PTHREAD_COND_INITIALIZER},
};

static int has_file(int gpu)
{
    return turn[gpu].fd > 0 && allot_is_file(turn[gpu].fd, turn[gpu].device, turn[gpu].inode);
}

static void forget(void)
{
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        if (has_file(gpu))
            close(turn[gpu].fd);
        memset(&turn[gpu], 0, sizeof turn[gpu]);
        pthread_mutex_init(&turn[gpu].mutex, NULL);
        pthread_cond_init(&turn[gpu].begun, NULL);
    }
    num_captures = 0;
}

__attribute__((constructor)) static void watch(void) { allot_session_on_fork(forget); }

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static int lock(int fd, short type, off_t byte)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &l) == 0;
}

/* The first locked byte of others in [first, end), or -1. */
static off_t locked_from(int fd, off_t first, off_t end)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = first, .l_len = end - first};
    if (first >= end || fcntl(fd, F_OFD_GETLK, &l) != 0 || l.l_type == F_UNLCK)
        return -1;
    return l.l_start < first ? first : l.l_start;
}

static account read_account(int fd, unsigned slot)
{
    account found = {0};
    if (pread(fd, &found, sizeof found, (off_t)(slot * sizeof found)) != sizeof found)
        memset(&found, 0, sizeof found);
    return found;
}

static void write_account(int gpu, unsigned slot, const account *value)
{
    if (!has_file(gpu) ||
        pwrite(turn[gpu].fd, value, sizeof *value, (off_t)(slot * sizeof *value)) < 0)
        return;
}

static unsigned own_slot(allot_session *session, int gpu)
{
    return session->limits->gpus[gpu].share_slot % MAX_SESSIONS;
}

/* A process of ours that waits or launches holds its session's byte, shared with its siblings. */
static int is_next(int fd, unsigned own, uint64_t virtual_ns)
{
    for (off_t byte = WAITING_BYTES;
         (byte = locked_from(fd, byte, WAITING_BYTES + MAX_SESSIONS)) >= 0; byte++) {
        unsigned slot = (unsigned)(byte - WAITING_BYTES);
        if (slot == own)
            continue;
        uint64_t theirs = read_account(fd, slot).virtual_ns;
        if (theirs < virtual_ns || (theirs == virtual_ns && slot < own))
            return 0;
    }
    return 1;
}

/* Who was idle has no credit from that time: it begins with those who are at work. */
static void catch_up(int fd, unsigned own, account *mine)
{
    uint64_t least = UINT64_MAX;
    for (off_t byte = BUSY_BYTES; (byte = locked_from(fd, byte, BUSY_BYTES + MAX_SESSIONS)) >= 0;
         byte++) {
        unsigned slot = (unsigned)(byte - BUSY_BYTES);
        uint64_t theirs = read_account(fd, slot).virtual_ns;
        if (slot != own && theirs < least)
            least = theirs;
    }
    if (least != UINT64_MAX && mine->virtual_ns < least)
        mine->virtual_ns = least;
}

/* What a strict session must wait, so that it never gets more than its share of the time. */
static uint64_t too_early_ns(allot_session *session, int gpu, account *mine, uint64_t now)
{
    uint64_t milli = session->limits->gpus[gpu].milli;
    if (!session->limits->is_strict || milli >= 1000)
        return 0;
    uint64_t due = mine->since_ns + mine->used_ns * 1000 / milli;
    /* Time that it left unused does not pile up beyond one turn. */
    if (!mine->since_ns || due + QUANTUM_NS * 1000 / milli < now) {
        mine->since_ns = now;
        mine->used_ns = 0;
        return 0;
    }
    return due > now ? due - now : 0;
}

/* While the session's memory goes away the driver answers nobody: who waited for it then would keep
 * the turn until it is back. */
static int may_wait(allot_session *session, int gpu)
{
    return turn[gpu].context && !atomic_load(&num_captures) &&
           atomic_load(&session->account.map->state) == ALLOT_RUNNING;
}

static void wait_until_idle(int gpu)
{
    int mode = 2; /* relaxed: a capture of another thread is not disturbed */
    ALLOT_DRIVER(cuThreadExchangeStreamCaptureMode, (int *), &mode);
    if (ALLOT_DRIVER(cuCtxPushCurrent_v2, (CUcontext), turn[gpu].context) == CUDA_SUCCESS) {
        ALLOT_DRIVER(cuCtxSynchronize, (void));
        ALLOT_DRIVER(cuCtxPopCurrent_v2, (CUcontext *), &turn[gpu].context);
    }
    ALLOT_DRIVER(cuThreadExchangeStreamCaptureMode, (int *), &mode);
}

/* Under the mutex: charges the turn; gives it up, or begins the next one if nobody waits. */
static void end_turn(allot_session *session, int gpu, int may_keep)
{
    int fd = turn[gpu].fd;
    unsigned own = own_slot(session, gpu);
    if (may_wait(session, gpu))
        wait_until_idle(gpu);
    uint64_t now = now_ns(), took = now - turn[gpu].began;
    account mine = read_account(fd, own);
    mine.used_ns += took;
    mine.virtual_ns += took * 1000 / session->limits->gpus[gpu].milli;
    write_account(gpu, own, &mine);
    atomic_fetch_add(&session->account.map->processes[session->account.slot].gpu_ns, took);
    if (may_keep && !session->limits->is_strict && is_next(fd, own, mine.virtual_ns) &&
        locked_from(fd, WAITING_BYTES, WAITING_BYTES + MAX_SESSIONS) < 0) {
        turn[gpu].began = now;
        turn[gpu].until = now + QUANTUM_NS;
        return;
    }
    turn[gpu].is_held = 0;
    lock(fd, F_UNLCK, TURN_BYTE);
}

/* Gives a turn up that nobody uses any more, and the sign that this session is at work. */
static void *watcher(void *argument)
{
    int gpu = (int)(intptr_t)argument;
    allot_session *session = allot_session_get();
    allot_enter();
    for (;;) {
        pause_ns(QUANTUM_NS / 4);
        pthread_mutex_lock(&turn[gpu].mutex);
        uint64_t now = now_ns(), last = atomic_load(&turn[gpu].last_launch);
        if (turn[gpu].is_held && (now > turn[gpu].until || now - last > QUANTUM_NS / 4))
            end_turn(session, gpu, now - last <= QUANTUM_NS / 4);
        if (!turn[gpu].is_held && now > last + 20 * QUANTUM_NS) {
            lock(turn[gpu].fd, F_UNLCK, BUSY_BYTES + own_slot(session, gpu));
            turn[gpu].is_busy = 0;
            while (now_ns() > atomic_load(&turn[gpu].last_launch) + 20 * QUANTUM_NS)
                pthread_cond_wait(&turn[gpu].begun, &turn[gpu].mutex);
        }
        pthread_mutex_unlock(&turn[gpu].mutex);
    }
    return NULL;
}

/* Signals are for the user's own threads: one that ours got would not interrupt what waits there. */
static int start_watcher(int gpu)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, &attributes, watcher, (void *)(intptr_t)gpu);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

static int open_file(allot_session *session, int gpu)
{
    struct stat found;
    if (turn[gpu].is_off || has_file(gpu))
        return !turn[gpu].is_off;
    /* Never opened; or closed by the program, and the turn and its signs with it. */
    turn[gpu].is_held = turn[gpu].is_busy = 0;
    turn[gpu].fd = allot_open(session->limits->gpus[gpu].share);
    if (turn[gpu].fd > 0 && fstat(turn[gpu].fd, &found) == 0) {
        turn[gpu].device = (uint64_t)found.st_dev;
        turn[gpu].inode = (uint64_t)found.st_ino;
        turn[gpu].is_watched = turn[gpu].is_watched || start_watcher(gpu);
    }
    turn[gpu].is_off = turn[gpu].fd <= 0 || !turn[gpu].is_watched;
    return !turn[gpu].is_off;
}

/* The first launch after some idle time: begins where the others are. */
static void be_busy(int gpu, unsigned own)
{
    int fd = turn[gpu].fd;
    int has_busy_sibling = locked_from(fd, BUSY_BYTES + own, BUSY_BYTES + own + 1) >= 0;
    turn[gpu].is_busy = 1;
    lock(fd, F_RDLCK, BUSY_BYTES + own);
    if (has_busy_sibling)
        return;
    account mine = read_account(fd, own);
    catch_up(fd, own, &mine);
    write_account(gpu, own, &mine);
}

/* One try: whether the turn is ours now; else how long to wait before the next. */
static int try_turn(allot_session *session, int gpu, unsigned own, uint64_t *pause)
{
    int fd = turn[gpu].fd;
    account mine = read_account(fd, own);
    *pause = LOOK_EVERY_NS;
    if (!is_next(fd, own, mine.virtual_ns) || !lock(fd, F_WRLCK, TURN_BYTE))
        return 0;
    /* Only who has the turn writes its session's account. */
    mine = read_account(fd, own);
    uint64_t early = too_early_ns(session, gpu, &mine, now_ns());
    if (early) {
        lock(fd, F_UNLCK, TURN_BYTE);
        *pause = early < QUANTUM_NS ? early : QUANTUM_NS;
        return -1;
    }
    write_account(gpu, own, &mine);
    return 1;
}

static void begin_turn(allot_session *session, int gpu)
{
    unsigned own = own_slot(session, gpu);
    uint64_t asked = now_ns(), patience = turn[gpu].is_impatient ? 0 : PATIENCE_NS, pause;
    int is_mine = 0;
    if (!turn[gpu].is_busy)
        be_busy(gpu, own);
    lock(turn[gpu].fd, F_RDLCK, WAITING_BYTES + own);
    while (!turn[gpu].is_held) {
        is_mine = try_turn(session, gpu, own, &pause);
        if (is_mine > 0 || (is_mine == 0 && now_ns() - asked >= patience))
            break;
        if (is_mine < 0) {
            /* Not its time yet: nobody else need wait for it. */
            lock(turn[gpu].fd, F_UNLCK, WAITING_BYTES + own);
            asked = now_ns();
        }
        pthread_mutex_unlock(&turn[gpu].mutex);
        pause_ns(pause);
        pthread_mutex_lock(&turn[gpu].mutex);
        lock(turn[gpu].fd, F_RDLCK, WAITING_BYTES + own);
    }
    lock(turn[gpu].fd, F_UNLCK, WAITING_BYTES + own);
    turn[gpu].is_impatient = is_mine == 0 && !turn[gpu].is_held;
    if (is_mine > 0) {
        turn[gpu].began = now_ns();
        turn[gpu].until = turn[gpu].began + QUANTUM_NS;
        ALLOT_DRIVER(cuCtxGetCurrent, (CUcontext *), &turn[gpu].context);
        __atomic_store_n(&turn[gpu].is_held, 1, __ATOMIC_RELEASE);
    }
}

void allot_turn_forget(CUcontext context)
{
    for (int gpu = 0; gpu < ALLOT_MAX_GPUS; gpu++) {
        pthread_mutex_lock(&turn[gpu].mutex);
        if (turn[gpu].context == context)
            turn[gpu].context = NULL;
        pthread_mutex_unlock(&turn[gpu].mutex);
    }
}

int allot_is_capturing(CUstream stream)
{
    int status = 0;
    return ALLOT_DRIVER(cuStreamIsCapturing, (CUstream, int *), stream, &status) == CUDA_SUCCESS &&
           status != 0;
}

int allot_may_capture(void) { return atomic_load(&num_captures) > 0; }

void allot_capture_changed(int by) { atomic_fetch_add(&num_captures, by); }

void allot_take_turn(CUstream stream)
{
    allot_session *session = allot_session_get();
    int gpu = session ? allot_current_gpu() : -1;
    if (gpu < 0 || !session->limits->gpus[gpu].share[0])
        return;
    uint64_t now = now_ns();
    atomic_store(&turn[gpu].last_launch, now);
    if (__atomic_load_n(&turn[gpu].is_held, __ATOMIC_ACQUIRE) &&
        now < __atomic_load_n(&turn[gpu].until, __ATOMIC_RELAXED))
        return;
    /* What is only recorded takes no time of the device. */
    if (allot_may_capture() && allot_is_capturing(stream))
        return;
    pthread_mutex_lock(&turn[gpu].mutex);
    if (open_file(session, gpu)) {
        pthread_cond_broadcast(&turn[gpu].begun);
        if (!turn[gpu].context)
            ALLOT_DRIVER(cuCtxGetCurrent, (CUcontext *), &turn[gpu].context);
        if (turn[gpu].is_held && now_ns() >= turn[gpu].until)
            end_turn(session, gpu, 1);
        if (!turn[gpu].is_held)
            begin_turn(session, gpu);
    }
    pthread_mutex_unlock(&turn[gpu].mutex);
}
