/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dev.h - devices: where tensors live.
 *
 * A device is a table of functions (struct pf_dev_ops) and an instance (struct pf_dev, extended by
 * its member). The cpu is always there; others are NULL in the table of devices when they are not
 * built. Callers go through the pf_dev_* functions, which check arguments and then call the slot.
 *
 *     struct pf_dev *dev;
 *     void *x;
 *     PF_TRY(pf_dev_open("cpu", &dev));
 *     PF_TRY(pf_dev_mem_alloc(dev, bytes, &x));
 *     PF_TRY(pf_dev_mem_copy(dev, x, host, bytes, PF_DEV_COPY_IN));
 *     PF_TRY(pf_dev_stream_sync(dev));
 *     PF_TRY(pf_dev_mem_free(dev, x));
 *     PF_TRY(pf_dev_close(dev));
 *
 * All functions are local (not collective). Copies and fills are ordered on the device's one stream
 * and may return before they are done; pf_dev_stream_sync waits.
 */
#ifndef PF_DEV_H
#define PF_DEV_H

#include <stdbool.h>
#include <stddef.h>

struct pf_dev;

enum pf_dev_copy_kind {
    PF_DEV_COPY_IN,     /* host to device */
    PF_DEV_COPY_OUT,    /* device to host */
    PF_DEV_COPY_WITHIN, /* both on the device */
};

/* A member of the device table. Every slot is required; every int is 0 or a pf_error code. */
struct pf_dev_ops {
    /* The word users type. */
    const char *name;

    /* Can this machine use the device? PF_ENOTSUP with the reason, else 0. No side effects. */
    int (*probe)(void);

    /* Make an instance, ready for use; its first field is struct pf_dev. */
    int (*open)(struct pf_dev **dev_out);

    /* Wait for the stream and release the instance. Its memory must have been freed. */
    int (*close)(struct pf_dev *dev);

    /* bytes > 0 of zeroed device memory, aligned to 64 bytes at least. PF_ENOMEM (host memory) or
     * PF_EDEVICE (device memory) when there is none. */
    int (*mem_alloc)(struct pf_dev *dev, size_t bytes, void **block_out);

    /* Release a block of mem_alloc; waits for the stream first where it must. Never NULL. */
    int (*mem_free)(struct pf_dev *dev, void *block);

    /* Copy bytes > 0; source and destination do not overlap. */
    int (*mem_copy)(struct pf_dev *dev, void *dst, const void *src, size_t bytes,
                    enum pf_dev_copy_kind kind);

    /* Set bytes > 0 to one value. */
    int (*mem_set)(struct pf_dev *dev, void *dst, int byte, size_t bytes);

    /* Wait until all that was put on the stream is done. */
    int (*stream_sync)(struct pf_dev *dev);
};

/* The common part of an instance. */
struct pf_dev {
    const struct pf_dev_ops *ops;
};

/*
 * Open a device by name; NULL or "auto": the first of the table that probes well.
 * Errors: PF_EUSAGE for an unknown name (the message lists the known ones), PF_ENOTSUP for one that
 * is not in this build or that this machine lacks; what the member's open returns.
 */
int pf_dev_open(const char *name, struct pf_dev **dev_out);

/* Close; NULL is allowed. */
int pf_dev_close(struct pf_dev *dev);

/* The name of the device that was opened. */
const char *pf_dev_name(const struct pf_dev *dev);

/* Device number i of the table in order of preference: its name, or NULL after the last. *built_out
 * (may be NULL) says whether this build has it. For --version and pf-inspect. */
const char *pf_dev_known(int i, bool *built_out);

/* The slots, checked. 0 bytes succeed: mem_alloc gives NULL then, and mem_free takes it. */
int pf_dev_mem_alloc(struct pf_dev *dev, size_t bytes, void **block_out);
int pf_dev_mem_free(struct pf_dev *dev, void *block);
int pf_dev_mem_copy(struct pf_dev *dev, void *dst, const void *src, size_t bytes,
                    enum pf_dev_copy_kind kind);
int pf_dev_mem_set(struct pf_dev *dev, void *dst, int byte, size_t bytes);
int pf_dev_stream_sync(struct pf_dev *dev);

/* What the processor is; compared between ranks, since bits depend on it. */
struct pf_cpu_info {
    char model[64]; /* "AMD EPYC 9R14", "unknown" where the system does not say */
    char isa[128]; /* "sse4.2 avx avx2 fma f16c avx512f ...": those pf looks at, "" if not x86-64 */
    int n_cpus;    /* CPUs that this process may run on (its affinity mask), at least 1 */
};

/* Fill *info_out. Errors: PF_EIO if the system refuses the affinity mask. */
int pf_cpu_info(struct pf_cpu_info *info_out);

#endif
