/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h - files read and written whole, safely, or by ranges.
 *
 * What is written under a final name is complete: write aside in the same directory, fsync, rename,
 * fsync the directory. Names that come from data (an index, a manifest) must pass
 * pf_path_is_safe_member before they are joined to a directory.
 *
 * Failures are PF_EIO with a record naming the path and the system's reason, unless said otherwise.
 * All functions are local, blocking, and safe to call from any thread.
 */
#ifndef PF_FILE_H
#define PF_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pf/str.h>

/*
 * The whole file, with a NUL after it that *len_out does not count; free with pf_free. max_bytes 0
 * is no limit; a longer file is PF_EINVAL. A directory is PF_EIO, and so is a FIFO or a device, which
 * might be waited for without end; but /dev/stdin and /dev/fd/N are read whatever they are.
 */
int pf_file_read_all(const char *path, size_t max_bytes, char **data_out, size_t *len_out);

/* Read or write exactly n bytes at an offset, through short counts and EINTR. An end of file before
 * n bytes is PF_EFORMAT. `path` is for messages. */
int pf_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path);
int pf_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path);

/* Write exactly n bytes at the file's position. */
int pf_write_full(int fd, const void *buf, size_t n, const char *path);

/* One read at the file's position, of at most n bytes, through EINTR; 0 bytes at the end. */
int pf_read_some(int fd, void *buf, size_t n, const char *path, size_t *n_out);

/* Open with O_CLOEXEC (flags of open(2); new files get 0666 less the umask); *fd_out is closed with pf_close. */
int pf_open(const char *path, int flags, int *fd_out);

/* Close, reporting what close(2) does; fd < 0 is fine. A reader may ignore the result and give NULL
 * for path: then nothing is recorded. */
int pf_close(int fd, const char *path);

/* Length in bytes of a regular file; PF_EIO for anything else. */
int pf_file_size(const char *path, uint64_t *bytes_out);

bool pf_path_exists(const char *path); /* of any kind; a dangling link exists */
bool pf_path_is_dir(const char *path);
bool pf_path_is_file(const char *path); /* a regular file, perhaps through a link */

/* Make a directory and its missing parents, which then survive a loss of power; one that is there
 * already is fine. */
int pf_mkdirs(const char *path);

/* fsync an open file or directory; a filesystem that has nothing to sync is fine. */
int pf_fsync(int fd, const char *path);

/* The same of a path. */
int pf_fsync_path(const char *path);

/* Replace (or make) a file so that at any instant its name leads to the old content or the new. On
 * an error the old content is untouched and nothing is left aside. */
int pf_file_write_atomic(const char *path, const void *data, size_t len);

/* Remove what processes that were killed in pf_file_write_atomic(path) left beside it. Call it while
 * nobody writes path. */
int pf_file_clean_aside(const char *path);

/* Rename within one filesystem and fsync the directory of `to`. */
int pf_rename_durable(const char *from, const char *to);

/* Exchange two paths of one filesystem in one step, so that no instant is without either; not synced.
 * PF_EIO also where the filesystem or the system cannot, errno then EINVAL or ENOSYS. Source:
 * renameat2(2), RENAME_EXCHANGE. */
int pf_rename_exchange(const char *a, const char *b);

/* Copy a regular file's content to a new file (PF_EREFUSED if `to` exists), not fsynced. */
int pf_file_copy(const char *from, const char *to);

/* Remove a directory with all in it. Links are removed, never followed; a mount point inside is
 * refused; a path that is not a directory, "/", "." or ends in ".." is PF_EINVAL. A missing one is
 * fine. */
int pf_rmtree(const char *path);

/* "dir/name"; name alone when dir is empty or "."; free with pf_free. NULL with a record when memory
 * is out. */
char *pf_path_join(const char *dir, const char *name);

/* The part after the last '/', pointing into path. */
const char *pf_path_base(const char *path);

/* The part before the last '/' ("." if there is none, "/" for the root); free with pf_free. */
char *pf_path_dir(const char *path);

/*
 * May a name found in data be opened below a directory? False for an absolute path, an empty one,
 * any part that is empty, "." or "..", a backslash, a drive ("C:"), a control character, or more
 * than 4096 bytes. The name "shards/a.bin" is safe. Links on disk are another matter.
 */
bool pf_path_is_safe_member(const char *name);

/* Hold a directory for this process alone, until the returned descriptor is closed or the process is
 * gone (flock(2)). Waits up to wait_s seconds for another holder, then PF_EREFUSED. A filesystem that
 * has no locks gives a descriptor that holds nothing. */
int pf_dir_lock(const char *path, double wait_s, int *fd_out);

/* Does somebody hold a directory by pf_dir_lock? Does not wait. PF_LOCK_UNKNOWN where the filesystem
 * has no locks, as many network filesystems have none on directories. */
enum pf_lock_state { PF_LOCK_FREE, PF_LOCK_HELD, PF_LOCK_UNKNOWN };
int pf_dir_lock_state(const char *path, enum pf_lock_state *state_out);

/* Names in a directory, without "." and "..", in byte order. */
int pf_dir_list(const char *path, struct pf_str_list *list_out);

/*
 * A file of lines that only grows, such as metrics.jsonl: each line is handed to the system whole
 * when it is added, so that a killed process loses none that was added before.
 */
struct pf_line_file {
    int fd;
    char *path;
    uint64_t bytes; /* length of the file */
};

/* Open for appending, making it if missing. keep_bytes, if not UINT64_MAX, cuts the file off after
 * that many bytes (a resume drops lines that it will write again); longer than the file is
 * PF_EINVAL. */
int pf_line_file_open(const char *path, uint64_t keep_bytes, struct pf_line_file *file_out);

/* Append text and, if it does not end in one, a '\n'. */
int pf_line_file_add(struct pf_line_file *file, const char *text);
int pf_line_file_sync(struct pf_line_file *file);

/* Close; a zeroed or closed struct is fine. */
int pf_line_file_close(struct pf_line_file *file);

#endif
