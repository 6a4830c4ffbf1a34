/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tfevents.h - event files that TensorBoard opens: scalars by step.
 *
 * A file is a sequence of TFRecords, each one Event in protobuf encoding. The first says the version
 * ("brain.Event:2"); a run that goes on from an earlier step then writes a session start with the
 * first step that is new, at which TensorBoard forgets what older files say of that step and later
 * ones. A file is only appended to, one write(2) an event, so a killed process loses none before.
 *
 *     PF_TRY(pf_tfevents_open("out/tb", 101, &events));      // steps 1 to 100 stand in older files
 *     PF_TRY(pf_tfevents_add(events, 101, scalars, n));
 *     pf_tfevents_close(events);
 *
 * Source: tensorflow/core/lib/io/record_writer.cc (framing, masked checksums),
 * tensorflow/core/util/event.proto and framework/summary.proto (fields), tensorboard's
 * event_accumulator.py (what a session start means), protobuf's "Encoding" page.
 *
 * All functions are local; one handle is used by one thread.
 */
#ifndef PF_TFEVENTS_H
#define PF_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

struct pf_tfevents;

struct pf_tfevents_scalar {
    const char *tag; /* up to 64 bytes, such as "train/loss" */
    double value;    /* stored as a float */
};

/* Most scalars of one event. */
#define PF_TFEVENTS_MAX_SCALARS 16

/*
 * Make a new file events.out.tfevents.SECONDS.HOST.PID in dir (made if missing), with a later SECONDS
 * than any file there, so that files are read in the order in which they were written. purge_step:
 * the first step that this file says anew; 0 or less: there is nothing before it. Errors: PF_EIO,
 * PF_ENOMEM.
 */
int pf_tfevents_open(const char *dir, int64_t purge_step, struct pf_tfevents **events_out);

/* Append one event of these scalars at a step, at the time of the call. Allocates nothing. Errors:
 * PF_EIO; PF_EINVAL for too many scalars or too long a tag. */
int pf_tfevents_add(struct pf_tfevents *events, int64_t step,
                    const struct pf_tfevents_scalar *scalars, size_t n);

/* The path of the file. */
const char *pf_tfevents_path(const struct pf_tfevents *events);

/* NULL is fine. */
void pf_tfevents_close(struct pf_tfevents *events);

/* Remove all event files of a directory (those whose names begin with "events.out.tfevents."); a
 * missing directory is fine. */
int pf_tfevents_clean(const char *dir);

/* CRC-32C (Castagnoli), Source: RFC 3720 appendix B.4; and as TFRecords store it. */
uint32_t pf_crc32c(const void *data, size_t n);
uint32_t pf_tfevents_masked_crc(const void *data, size_t n);

#endif
