/* The accounting region: one mapped file that all processes of a session share.
 *
 * Liveness is one OFD byte lock per slot, dropped by the kernel when its process dies, so no PID is
 * ever compared and a SIGKILL anywhere leaves nothing to repair. A process writes only its own
 * slot. `region.py` reads the same layout; change both, and ALLOT_REGION_VERSION.
 *
 * The fake driver keeps the memory of a simulated device in a file of the same form.
 */
#ifndef ALLOT_REGION_H
#define ALLOT_REGION_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define ALLOT_REGION_MAGIC 0x314752544f4c4c41ull /* "ALLOTRG1" */
#define ALLOT_REGION_VERSION 3u
#define ALLOT_MAX_GPUS 16
#define ALLOT_MAX_SLOTS 1024
/* Byte ranges that are locked, far behind the file's end. */
#define ALLOT_LOCK_SLOTS (1l << 20)
#define ALLOT_LOCK_SCARCE ((1l << 20) - 1)

/* What the agent writes into `state`; any but RUNNING holds CUDA calls back (gate.c). */
enum {
    ALLOT_RUNNING = 0,
    ALLOT_LOCKING = 1,
    ALLOT_SWAPPING_OUT = 2,
    ALLOT_SWAPPED_OUT = 3,
    ALLOT_WAITING = 4,
    ALLOT_SWAPPING_IN = 5,
    ALLOT_FAILED = 6,
};

/* What a process did that Swap must know of; that of the dead does not count. Contexts on several
 * devices are seen in `contexts`. */
enum {
    ALLOT_FLAG_MANAGED = 1,
    ALLOT_FLAG_IPC = 2,
    ALLOT_FLAG_EXPORTABLE = 4,
};

typedef struct {
    uint8_t uuid[16];
    uint64_t limit;               /* bytes; for display only, the limits file is what counts */
    _Atomic uint32_t utilisation; /* per cent, written by the agent where the driver tells */
    _Atomic uint32_t clock_mhz;   /* spare */
    _Atomic uint64_t busy_until;  /* ns; the fake driver's queue */
    uint8_t spare[24];
} allot_region_gpu;

/* Of one process; what the fake driver's checkpoint calls need lies beside it. */
typedef struct {
    _Atomic uint32_t pid;              /* as the process sees itself; for display */
    _Atomic uint32_t checkpoint_state; /* CUprocessState */
    _Atomic uint64_t pid_namespace;    /* inode of its PID namespace */
    _Atomic uint64_t busy_until;       /* ns */
    _Atomic uint64_t gpu_ns;           /* GPU time used so far */
    _Atomic uint32_t contexts;         /* devices on which it has a context, a bit each */
    _Atomic uint32_t is_broken;
    _Atomic uint32_t flags;
    uint8_t spare[20];
} allot_region_process;

typedef struct {
    uint64_t magic;
    uint32_t version;
    _Atomic uint32_t generation;  /* raised after the limits file has changed */
    _Atomic uint32_t state;
    uint32_t spare_word;
    _Atomic uint64_t last_call;   /* ns of CLOCK_MONOTONIC, at the last hooked call */
    _Atomic uint32_t high_slot;   /* slots below it have been taken at least once */
    _Atomic uint32_t num_held;    /* calls that the gate holds now; a dead process's stay counted */
    _Atomic uint64_t num_wakes;   /* datagrams sent */
    _Atomic uint64_t swept_at;    /* ns of CLOCK_MONOTONIC, when the dead were last looked for */
    uint8_t spare[8];
    allot_region_gpu gpus[ALLOT_MAX_GPUS];
    allot_region_process processes[ALLOT_MAX_SLOTS];
    /* Granted, and asked for at this moment. A reader takes `pending` first: see reserve(). */
    _Atomic uint64_t used[ALLOT_MAX_GPUS][ALLOT_MAX_SLOTS];
    _Atomic uint64_t pending[ALLOT_MAX_GPUS][ALLOT_MAX_SLOTS];
    /* Moved to the host by a checkpoint (fake driver only). */
    _Atomic uint64_t saved[ALLOT_MAX_GPUS][ALLOT_MAX_SLOTS];
    /* Of `used`, what is charged for contexts; and what the agent, comparing with NVML, found the
     * driver to take beside what is asked of it, 0 before: the process brings the one to the other. */
    _Atomic uint64_t context[ALLOT_MAX_GPUS][ALLOT_MAX_SLOTS];
    _Atomic uint64_t measured[ALLOT_MAX_GPUS][ALLOT_MAX_SLOTS];
} allot_region;

/* One process's hold of a region. */
typedef struct {
    int fd;
    int slot; /* -1: only looks */
    allot_region *map;
    uint64_t device, inode; /* of the file, by which `fd` is known to be it still */
    pthread_mutex_t mutex;
} allot_account;
#define ALLOT_ACCOUNT_NONE {.fd = -1, .slot = -1, .mutex = PTHREAD_MUTEX_INITIALIZER}

/* Opens a file of ours for reading and writing, never as a standard stream; -1 if it cannot be. */
int allot_open(const char *path);
/* Whether a descriptor is that file still: a program that has closed all of its descriptors, ours
 * among them, may have another there by now. */
int allot_is_file(int fd, uint64_t device, uint64_t inode);
/* Maps a region that somebody made. 0, or -1 with a sentence in `why`. */
int allot_account_open(allot_account *account, const char *path, const char **why);
/* Takes a slot in it. 0, or -1 if all are taken. */
int allot_account_join(allot_account *account);
/* In a forked child: lets go without disturbing the parent. */
void allot_account_drop(allot_account *account);

/* Takes n bytes if the whole session stays within the limit. Whether it did. */
int allot_account_reserve(allot_account *account, unsigned gpu, uint64_t n, uint64_t limit);
/* Counts bytes that are there whether wanted or not (what the driver took beside a request). */
void allot_account_add(allot_account *account, unsigned gpu, uint64_t n);
void allot_account_release(allot_account *account, unsigned gpu, uint64_t n);
/* Bytes in use by living processes; those of one that has just died for some milliseconds more. */
uint64_t allot_account_used(allot_account *account, unsigned gpu);
/* Empties the slots of the dead now; how many. */
int allot_account_sweep(allot_account *account);
uint64_t allot_account_own(const allot_account *account, unsigned gpu);
/* Whether the slot's process lives. */
int allot_account_is_alive(const allot_account *account, int slot);

#endif
