/* The limits file: what root lets this session use. Never the environment. See limits.py. */
#ifndef ALLOT_LIMITS_H
#define ALLOT_LIMITS_H

#include <stdint.h>

#include "region.h"

#define ALLOT_PATH_MAX 512

typedef struct {
    uint8_t uuid[16];
    uint64_t bytes;
    uint64_t context_bytes; /* what one process's context takes */
    uint32_t milli;
    char share[ALLOT_PATH_MAX]; /* file of the device's turns; empty: no compute share */
    uint32_t share_slot;
} allot_gpu_limit;

typedef struct {
    char session[128];
    char region[ALLOT_PATH_MAX];
    char gate[ALLOT_PATH_MAX]; /* datagram socket of the agent; empty: none */
    int is_strict;             /* a session alone is held to its share as well */
    unsigned num_gpus;
    allot_gpu_limit gpus[ALLOT_MAX_GPUS];
} allot_limits;

/* 0, or -1 with a sentence in `why`. `owner` may own the file beside root. */
int allot_limits_read(allot_limits *limits, const char *path, unsigned owner, const char **why);
/* "GPU-…" or "MIG-…" to its 16 bytes; 0, or -1. */
int allot_uuid_parse(const char *text, uint8_t uuid[16]);
/* The index of a device, or -1. */
int allot_limits_find(const allot_limits *limits, const uint8_t uuid[16]);

#endif
